// The model that the page holds, and its answers to squares: the same sums as the Python package's models.
import { clamp } from "../format";
import type { Bounds } from "../views";

/** A square: its centre in degrees, its side in metres. */
export interface Square {
  readonly x: number;
  readonly y: number;
  readonly size: number;
}
/** An answer, of the part of a square inside the region; `inside` is that part's share of the square's area. */
export interface Answer {
  readonly users: number;
  readonly stddev: number;
  readonly inside: number;
}
/** A rectangle in base cells, x from the west, y from the north. */
export interface Box {
  readonly x0: number;
  readonly y0: number;
  readonly x1: number;
  readonly y1: number;
}
interface Estimate {
  users: number;
  variance: number;
}
interface Shared {
  side: number; // base cells along a side of the region
  metres: [number, number];
  min_clumping: number;
  error: "estimate" | "lower bound";
  users: number[];
}
export interface Grid extends Shared {
  x_edges: number[];
  y_edges: number[];
  noise: number;
  clumping: number;
}
export interface Network extends Grid {
  kind: "network";
  around: [number, number, number, number][];
  smoothing: number;
  low: [number, number];
  high: [number, number];
  networks: Record<"w1" | "b1" | "w2" | "b2" | "w3" | "b3" | "w4" | "b4", number[]>[];
}
interface Raster extends Shared {
  kind: "raster";
  x_edges: number[];
  y_edges: number[];
  errors: { sizes: number[]; places: number; stddev: number[] };
}
export type Model = (Grid & { kind: "grid" }) | Network | Raster;

export const areaOf = ({ x0, y0, x1, y1 }: Box): number => (x1 - x0) * (y1 - y0);
export const boxAround = (x: number, y: number, wide: number, tall: number): Box => ({ x0: x - wide / 2, y0: y - tall / 2, x1: x + wide / 2, y1: y + tall / 2 });

/** The last of ascending edges that is not above a place; the edge at the end does not count. */
export function stripAt(edges: number[], at: number): number {
  let [first, beyond] = [0, edges.length - 1];
  while (beyond - first > 1) {
    const middle = (first + beyond) >> 1;
    if (edges[middle] <= at) first = middle;
    else beyond = middle;
  }
  return first;
}

/** The first strip that low..high covers, and the share of each that is covered. */
function covered(edges: number[], low: number, high: number): [number, number[]] {
  const first = stripAt(edges, low);
  const shares: number[] = [];
  for (let i = first; i < edges.length - 1 && (i === first || edges[i] < high); i++) {
    shares.push((Math.min(high, edges[i + 1]) - Math.max(low, edges[i])) / (edges[i + 1] - edges[i]));
  }
  return [first, shares];
}

/** Calls visit(cell, share) for every cell of a grid that a box covers some of. */
function eachCovered(grid: { x_edges: number[]; y_edges: number[] }, box: Box, visit: (cell: number, share: number) => void): void {
  const [left, across] = covered(grid.x_edges, box.x0, box.x1);
  const [top, down] = covered(grid.y_edges, box.y0, box.y1);
  const columns = grid.x_edges.length - 1;
  down.forEach((tall, row) => across.forEach((wide, column) => visit((top + row) * columns + left + column, wide * tall)));
}

/** What the users at a box's centre add to the variance, as `centre_variance` has it. cell: the part with the centre. */
function centreVariance(box: Box, cell: Box, users: number, clumps: number, least: number): number {
  const across = Math.max(Math.min(box.x1, cell.x1) - Math.max(box.x0, cell.x0), 0);
  const down = Math.max(Math.min(box.y1, cell.y1) - Math.max(box.y0, cell.y0), 0);
  const share = clamp((across * down) / areaOf(cell), 1e-12, 1);
  const inside = Math.max(clumps, least);
  const [a, b] = [Math.log2(1 + inside), Math.log2(1 + 3 * inside)];
  const uneven = share ** (2 - b) - 2 * share ** (2 - a) + share ** 2 - clumps * (share - share ** 2);
  return 1 + Math.max(users, 0) ** 2 * Math.max(uneven, 0);
}

export function askGrid(model: Grid, box: Box): Estimate {
  const { x_edges: xs, y_edges: ys, users: counts, noise, clumping } = model;
  let [users, variance] = [0, 0];
  eachCovered(model, box, (i, share) => {
    const uneven = Math.max(counts[i], 0) + clumping * Math.max(counts[i] ** 2 - noise, 0);
    users += counts[i] * share;
    variance += noise * share ** 2 + uneven * (share - share ** 2);
  });
  const [column, row] = [stripAt(xs, (box.x0 + box.x1) / 2), stripAt(ys, (box.y0 + box.y1) / 2)];
  const cell = { x0: xs[column], y0: ys[row], x1: xs[column + 1], y1: ys[row + 1] };
  variance += centreVariance(box, cell, counts[row * (xs.length - 1) + column], clumping, model.min_clumping);
  return { users, variance };
}

/** A raster's cells add up; its errors are those that the model itself had at some places and sizes, and between them. */
function askRaster(model: Raster, box: Box): Estimate {
  let users = 0;
  eachCovered(model, box, (i, share) => (users += model.users[i] * share));
  const { sizes, places, stddev } = model.errors;
  const metres = Math.sqrt(areaOf(box) * model.metres[0] * model.metres[1]) / model.side;
  const between = (at: number, last: number): [number, number, number] => {
    const low = Math.min(Math.floor(clamp(at, 0, last)), Math.max(last - 1, 0));
    return [low, Math.min(low + 1, last), clamp(at, 0, last) - low];
  };
  const [x, y] = [box.x0 + box.x1, box.y0 + box.y1].map((sum) => between((sum / 2 / model.side) * places - 0.5, places - 1));
  const z = between(Math.log(Math.max(metres, sizes[0]) / sizes[0]) / Math.log(sizes[1] / sizes[0]), sizes.length - 1);
  let mean = 0;
  for (const a of [0, 1]) for (const b of [0, 1]) for (const c of [0, 1]) {
    const weight = (a ? x[2] : 1 - x[2]) * (b ? y[2] : 1 - y[2]) * (c ? z[2] : 1 - z[2]);
    mean += weight * stddev[(z[c] * places + y[b]) * places + x[a]];
  }
  return { users, variance: mean ** 2 };
}

/** Answers squares of a region. */
export class RangeModel {
  private readonly askBox: (box: Box) => Estimate;

  constructor(readonly model: Model, private readonly region: Bounds, network: (model: Network) => (box: Box) => Estimate) {
    if (model.kind === "network") this.askBox = network(model);
    else if (model.kind === "grid") this.askBox = (box) => askGrid(model, box);
    else this.askBox = (box) => askRaster(model, box);
  }

  /** A square as a box, which may reach beyond the region. */
  boxOf({ x, y, size }: Square): Box {
    const { west, south, east, north } = this.region;
    const { side, metres } = this.model;
    return boxAround(((x - west) * side) / (east - west), ((north - y) * side) / (north - south), (size / metres[0]) * side, (size / metres[1]) * side);
  }

  /** The sides in degrees of a square. */
  boundsOf(square: Square): Bounds {
    const { west, south, east, north } = this.region;
    const box = this.boxOf(square);
    const [u, v] = [(east - west) / this.model.side, (north - south) / this.model.side];
    return { west: west + box.x0 * u, east: west + box.x1 * u, north: north - box.y0 * v, south: north - box.y1 * v };
  }

  answer(square: Square): Answer {
    const box = this.boxOf(square);
    const side = (edge: number): number => clamp(edge, 0, this.model.side);
    const within = { x0: side(box.x0), y0: side(box.y0), x1: side(box.x1), y1: side(box.y1) };
    const inside = areaOf(within) / areaOf(box);
    if (!(inside > 0)) return { users: 0, stddev: 0, inside: 0 };
    const { users, variance } = this.askBox(within);
    return { users: Math.max(users, 0), stddev: Math.sqrt(Math.max(variance, 0)), inside: inside > 1 - 1e-9 ? 1 : inside };
  }
}
