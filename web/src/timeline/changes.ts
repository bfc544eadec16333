// The change between two nights, cell by cell: shares of all users, and which cells changed at a stated rate. It tests as
// transforms/heatmap/changes.py does, but only cells: `sfumato changes` also tests the regions that they form.
import type { Layer, Measure, NightMap } from "../views";

export const RATE = 0.05; // the false discovery rate
const Z = 1.96;
const MIN_SNR = 2; // of the mean of both nights: elsewhere no change is large enough to be seen
const MIN_MEAN = 0.25; // users that a cell is taken to have at least, so that empty ones are no certainty
const [POINTS, NORMAL] = [120, 200]; // of the sum over the noise's variance; sums beyond which noise is as good as normal
const END = 8; // standard deviations at the ends of the scale
const LONGEST_LIST = 48;

/** A cell of both nights: what it gained of all users, and what is known of that. */
export interface Change {
  readonly id: string;
  readonly before: number; // shares of the users of each night
  readonly after: number;
  readonly difference: number;
  readonly deviation: number;
  readonly z: number;
  readonly q: number | null; // null where the cell was not tested
  readonly changed: boolean;
  readonly area: number; // share of the square that is the cell's own
}

/** erfc(x) for x >= 0, with a relative error below 1.2e-7 (Press et al., Numerical Recipes, 6.2). */
function erfc(x: number): number {
  const t = 1 / (1 + 0.5 * x);
  const series = [1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  return t * Math.exp(-x * x - 1.26551223 + series.reduceRight((sum, factor) => (sum + factor) * t, 0));
}

/**
 * The probability that noise and sampling together are at least z of their standard deviations from 0. A sum of k Laplace
 * variables is a normal one whose variance is a Gamma variable of shape k, so its tails are heavier.
 * share: the noise's part of the variance, 0..1.
 */
export function tails(shape: number): (z: number, share: number) => number {
  if (shape >= NORMAL) return (z) => erfc(Math.abs(z) / Math.SQRT2);
  const [low, high] = [-1 - 32 / shape, Math.log(2 + 60 / shape)]; // of the logarithm of the variance over its mean
  const logs = Array.from({ length: POINTS }, (_, i) => low + ((high - low) * (i + 0.5)) / POINTS);
  const weights = logs.map((log) => Math.exp(shape * (log - Math.exp(log) + 1)));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return (z, share) => logs.reduce((sum, log, i) => sum + (weights[i] / total) * erfc(Math.abs(z) / Math.sqrt(2 * (1 + share * (Math.exp(log) - 1)))), 0);
}

/** The q-values of Benjamini and Hochberg: the least false discovery rate at which each test is a discovery. */
export function qValues(p: number[]): number[] {
  const order = p.map((_, i) => i).sort((a, b) => p[b] - p[a]); // the greatest first
  const q = new Array<number>(p.length);
  let least = 1;
  order.forEach((i, place) => (q[i] = least = Math.min(least, (p[i] * p.length) / (p.length - place))));
  return q;
}

const DIGITS = ["0", "1", "2", "3"];

/**
 * The squares that no larger cell owns a part of, and for each cell the smallest of them around it: itself, or a quarter of
 * it (and so on) if the other three quarters have cells of their own. A cell that the last sub-query did not measure is in
 * the node that it did measure.
 */
function squares({ layer: { cell_id: ids }, measured }: NightMap): { whole: Set<string>; of: string[] } {
  const whole = new Set(["r", ...ids.map((id, i) => id.slice(0, measured[i] + 1))]);
  const of = [...ids];
  const deepest = Math.max(...ids.map((id) => id.length));
  for (let length = deepest; length > 0; length--) {
    ids.forEach((id, i) => {
      if (id.length !== length || measured[i] < length - 1) return; // what is not measured counts in the node around it
      for (let quarters = [""]; quarters.length; whole.add(of[i])) {
        quarters = DIGITS.filter((digit) => !whole.has(of[i] + digit));
        if (quarters.length !== 1) break;
        of[i] += quarters[0];
      }
    });
    for (const id of whole) if (id.length === length && id.length > 1 && DIGITS.every((digit) => whole.has(id.slice(0, -1) + digit))) whole.add(id.slice(0, -1));
  }
  return { whole, of };
}

interface Sum {
  users: number;
  variance: number;
  area: number;
}
/** A night's cells, each added to the smallest square around it that is whole in both nights. of: see `squares`. */
function sums(night: NightMap, of: string[], common: (id: string) => boolean): Map<string, Sum> {
  const found = new Map<string, Sum>();
  night.layer.cell_id.forEach((cell, i) => {
    let id = of[i];
    while (!common(id)) id = id.slice(0, -1);
    const sum = found.get(id) ?? { users: 0, variance: 0, area: 0 };
    sum.users += night.users[i];
    sum.variance += night.stddev[i] ** 2;
    sum.area += night.layer.area[i] * 4 ** (id.length - cell.length);
    found.set(id, sum);
  });
  return found;
}

/**
 * What each cell gained of all users from night a to night b. Where one night has larger cells, the other's are added up to
 * them. Under the null hypothesis equally large shares are expected: the difference has the noise of both nights, and the
 * variance of two counts of their common mean, because other people are out every night.
 */
export function compare(a: NightMap, b: NightMap): Change[] {
  const [ofA, ofB] = [squares(a), squares(b)];
  const common = (id: string): boolean => ofA.whole.has(id) && ofB.whole.has(id);
  const [before, after] = [sums(a, ofA.of, common), sums(b, ofB.of, common)];
  const total = (cells: Map<string, Sum>): number => Math.max([...cells.values()].reduce((sum, { users }) => sum + users, 0), 1);
  const [usersA, usersB] = [total(before), total(after)];
  const scale = usersB / usersA;
  let least = Infinity; // how many Laplace variables the noise is like, where its tails are heaviest
  const cells = [...after].flatMap(([id, end]) => {
    const start = before.get(id);
    if (!start || end.area < 1e-9) return [];
    const [noiseA, noiseB] = [Math.max(scale ** 2 * start.variance, 1e-12), Math.max(end.variance, 1e-12)];
    const noise = noiseA + noiseB;
    const mean = (scale * start.users * noiseB + end.users * noiseA) / noise;
    const variance = noise + (1 + scale) * Math.max(mean, MIN_MEAN);
    const shareA = noiseA / noise;
    least = Math.min(least, 1 / (shareA ** 2 / a.noisy_sums + (1 - shareA) ** 2 / b.noisy_sums));
    const difference = end.users / usersB - start.users / usersA;
    const deviation = Math.sqrt(variance) / usersB;
    return [{ id, before: start.users / usersA, after: end.users / usersB, difference, deviation, z: difference / deviation, share: noise / variance, tested: mean >= MIN_SNR * Math.sqrt((noiseA * noiseB) / noise), area: end.area }];
  }).sort((one, two) => one.id.length - two.id.length || (one.id < two.id ? -1 : 1));
  const probability = tails(least);
  const tested = cells.filter((cell) => cell.tested);
  const q = qValues(tested.map(({ z, share }) => probability(z, share)));
  const found = new Map(tested.map(({ id }, i) => [id, q[i]]));
  return cells.map(({ id, before: from, after: to, difference, deviation, z, area }) => {
    const own = found.get(id) ?? null;
    return { id, before: from, after: to, difference, deviation, z, q: own, changed: own !== null && own <= RATE, area };
  });
}

/** The changes as a layer of a map: coloured by z-value, hatched where a change is not significant. */
export function changeLayer(changes: Change[], title: string): Layer {
  const xs: number[] = [];
  const ys: number[] = [];
  for (const { id } of changes) {
    let [x, y] = [0, 0];
    for (const digit of id.slice(1)) [x, y] = [2 * x + (Number(digit) >> 1), 2 * y + (Number(digit) & 1)];
    xs.push(x);
    ys.push(y);
  }
  const shown = (z: number): number => Math.min(Math.max(z, -99), 99);
  const sure = ({ difference, deviation }: Change): number => Math.abs(difference) - Z * deviation;
  const measure: Measure = {
    name: "Fewer or more of all users", kind: "change", unit: "in standard deviations of noise and sampling error",
    value: changes.map(({ z }) => shown(z)), low: changes.map(({ z }) => shown(z) - Z), high: changes.map(({ z }) => shown(z) + Z),
    uncertain: changes.map(({ changed }) => !changed), smooth: false,
    scale: { kind: "diverging", low: -END, high: END, knee: null, unit: "", ticks: [[-END, `≤ \u2212${END}`], [-4, "\u22124"], [0, "0"], [4, "+4"], [END, `≥ +${END}`]] },
    listed: changes.map((_, i) => i).filter((i) => changes[i].changed).sort((i, j) => sure(changes[j]) - sure(changes[i])).slice(0, LONGEST_LIST)
      .map((i) => [i, changes[i].difference, changes[i].difference - Z * changes[i].deviation, changes[i].difference + Z * changes[i].deviation]),
    listed_note: "",
  };
  return { title, note: "", level: changes.map(({ id }) => id.length - 1), x: xs, y: ys, area: changes.map(({ area }) => area), cell_id: changes.map(({ id }) => id), measures: [measure], shapes: null, zones: null, named: false, noun: "cell", radius: null };
}
