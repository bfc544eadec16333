// A distribution: users by value or the share below a value, with the quantiles and the ranges next to it.
import { ChartFigure, type ChartOptions, type Mark, type Tip } from "../chart/figure";
import { choice, h } from "../dom";
import { csv, offer, pngOfSvg, svgOf } from "../download";
import { clamp, interval, percent, rounded, shareWords, significant, whole, within } from "../format";
import type { Product } from "../product";
import type { CurveBody, RangeRow } from "../views";

const STOPS = 200; // of the pointer along the curve

/** Share of the users below a value with its band, by straight lines between the curve's points. */
export function shareAt(body: CurveBody, value: number): [share: number, low: number, high: number] {
  const above = body.value.findIndex((one) => one >= value);
  const pick = (i: number): [number, number, number] => [body.share[i], body.low[i], body.high[i]];
  if (above < 0) return pick(body.value.length - 1);
  if (above === 0) return pick(0);
  const [from, to] = [pick(above - 1), pick(above)];
  const part = (value - body.value[above - 1]) / (body.value[above] - body.value[above - 1] || 1);
  return [0, 1, 2].map((i) => from[i] + part * (to[i] - from[i])) as [number, number, number];
}

const usersWords = ({ users, users_low, users_high }: RangeRow): string => `about ${within(users, users_low, users_high)} users`;

export const showCurve: Product = (view, root, tools) => {
  const body = view.body as CurveBody;
  const [first, last] = [body.value[0], body.value[body.value.length - 1]];
  const digits = clamp(Math.ceil(-Math.log10((last - first) / 2000)), 0, 12);
  const written = (value: number): string => rounded(Number(value.toFixed(digits)), [...Array(digits).keys()].find((places) => Number(value.toFixed(places)) === Number(value.toFixed(digits))) ?? digits);
  const quantileWords = body.quantiles.map((one) => `${significant(100 * one.share, 4)}%: ${within(one.value, one.low, one.high)}`);
  const x = { label: body.column, domain: [first, last] as const };
  let [chosen, picked] = [-1, -1]; // range and quantile

  function shareChart(): Partial<ChartOptions> {
    const range = body.ranges[chosen];
    const band = body.value.map((value, i) => [value, body.low[i], body.high[i]] as const);
    const marks: Mark[] = [
      ...(range ? [{ kind: "band", style: "chosen", points: [[range.low, 0, 1], [range.high, 0, 1]] } as const] : []),
      { kind: "band", points: band },
      { kind: "line", points: body.value.map((value, i) => [value, body.share[i]] as const) },
      ...(body.points.length ? [{ kind: "dots", points: body.points.map((value) => [value, shareAt(body, value)[0]] as const) } as const] : []),
      ...body.quantiles.flatMap((one, i): Mark[] => {
        const style = i === picked ? "chosen" : "mark";
        return [{ kind: "text", x: one.value, y: one.value > (first + last) / 2 ? one.share + 0.02 : one.share - 0.045, text: body.quantiles.some((other, j) => j > i && other.share - one.share < 0.06) ? "" : quantileWords[i], ...(one.value > (first + last) / 2 ? { dx: -9, anchor: "end" } : { dx: 9 }), },
          { kind: "line", style: `${style} lead`, points: [[first, one.share], [one.value, one.share], [one.value, 0]] },
          { kind: "lying", style, points: [[one.share, one.low, one.high]] }, { kind: "dots", style, points: [[one.value, one.share]] }];
      }),
    ];
    return {
      title: `Share of users below each value of ${body.column}`, description: body.note, marks, x,
      y: { label: "Share of users below", domain: [0, 1], format: (share) => percent(share, 0) }, keys: [["s0", "estimate with its 95% interval"], ["mark", "quantiles"]],
    };
  }
  function userChart(): Partial<ChartOptions> {
    const range = body.ranges[chosen];
    const top = Math.max(...body.histogram.map((one) => one.users_high), 1);
    const marks: Mark[] = [
      ...(range ? [{ kind: "band", style: "chosen", points: [[range.low, 0, top], [range.high, 0, top]] } as const] : []),
      { kind: "bars", bars: body.histogram.map((one) => [one.low, one.high, one.users] as const) },
      { kind: "upright", style: "mark", points: body.histogram.map((one) => [(one.low + one.high) / 2, one.users_low, one.users_high] as const) },
      ...body.quantiles.map((one, i) => ({ kind: "rule", x: one.value, style: i === picked ? "chosen" : "mark", text: quantileWords[i] } as const)),
    ];
    const width = body.histogram.length ? body.histogram[0].high - body.histogram[0].low : 0;
    return {
      title: `Users by ${body.column}`, marks, x, y: { label: `Users in each step of ${significant(width)}`, domain: [0, top * 1.02] },
      description: body.hidden === null ? "" : `A gap means at most ${whole(body.hidden)} users, possibly none.`,
      keys: [["s0", "estimate with its 95% interval"], ["mark", "quantiles"]],
    };
  }
  const kinds = body.histogram.length ? [userChart, shareChart] : [shareChart];
  const names = ["Users by value", "Share below a value"];
  let shown = tools.link.index("chart", kinds.length, 0);

  const board = h("div", { class: "board" });
  const note = h("p", { class: "note" });
  const tips = (): void => {
    if (kinds[shown] === userChart) {
      figure.setTip(body.histogram.map((one) => (one.low + one.high) / 2), (i): Tip => {
        const bin = body.histogram[i];
        return { x: (bin.low + bin.high) / 2, y: bin.users, value: usersWords(bin), margin: `${interval(bin.users_low, bin.users_high)} at 95%`, facts: [[body.column, `${written(bin.low)} to below ${written(bin.high)}`]] };
      });
    } else {
      const stops = Array.from({ length: STOPS + 1 }, (_, i) => first + ((last - first) * i) / STOPS);
      figure.setTip(stops, (i): Tip => {
        const [share, low, high] = shareAt(body, stops[i]);
        return { x: stops[i], y: share, value: high - low < 1e-6 ? percent(share, 0) : shareWords(share, low, high), margin: "of users, 95% interval", facts: [[body.column, `below ${written(stops[i])}`]] };
      });
    }
  };
  const paint = (): void => {
    const options = kinds[shown]();
    figure.draw(options);
    note.textContent = options.description ?? "";
    tips();
  };
  const control = kinds.length > 1 ? choice("Show", names, shown, (place) => {
    shown = place;
    tools.link.set("chart", place || null);
    paint();
  }) : null;
  board.append(...(control ? [control] : []));
  const figure = new ChartFigure(board, { ...kinds[shown](), height: (width: number) => clamp(width * 0.5, 300, Math.max(window.innerHeight - 330, 300)) } as ChartOptions, tools);
  board.append(note);

  /** A list of buttons; one at a time marks its answer on the chart. */
  function answers(title: string, rows: [string, string, string][], choose: (place: number) => void): HTMLElement | null {
    const list = h("ol", { class: "answers" }, rows.map(([name, value, margin], i) => {
      const made = h("button", { type: "button", "aria-pressed": "false" }, h("span", {}, name), h("b", {}, value), h("small", {}, margin));
      made.addEventListener("click", () => {
        const on = made.getAttribute("aria-pressed") !== "true";
        list.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(on && one === made)));
        choose(on ? i : -1);
        paint();
      });
      return h("li", {}, made);
    }));
    return rows.length ? h("section", {}, h("h2", {}, title), list) : null;
  }
  const quantiles = answers("Quantiles", body.quantiles.map((one, i) => [`${quantileWords[i].split(":")[0]} below`, within(one.value, one.low, one.high), interval(one.low, one.high)]), (place) => (picked = place));
  const ranges = answers("Ranges", body.ranges.map((one) => [`${written(one.low)} to below ${written(one.high)}`, usersWords(one).replace(/ users$/, ""), interval(one.users_low, one.users_high)]), (place) => (chosen = place));
  const pledge = h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report")));
  root.append(board, h("aside", { class: "panel", "aria-label": "Answers" }, ...[quantiles, ranges, pledge].filter((one) => one !== null)));
  tools.link.onChange(() => {
    shown = tools.link.index("chart", kinds.length, 0);
    control?.querySelectorAll("input").forEach((one, i) => (one.checked = i === shown));
    paint();
  });
  tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await pngOfSvg(figure.svg, tools.theme.colour("--ground"))));
  tools.addButton("SVG", () => offer(`${view.file_name}.svg`, svgOf(figure.svg)));
  tools.addButton("Table", () => offer(`${view.file_name}.csv`, kinds[shown] === userChart
    ? csv(["low", "high", "users", "users_low", "users_high"], body.histogram.map((one) => [one.low, one.high, one.users, one.users_low, one.users_high]))
    : csv(["value", "share", "low", "high"], body.value.map((value, i) => [value, body.share[i], body.low[i], body.high[i]]))));
  paint();
};
