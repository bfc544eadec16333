// Means and moments: the answer in large type, then groups or the map, then the bits it was made of.
import { ChartFigure, type ChartOptions, type Tip } from "../chart/figure";
import { choice, h } from "../dom";
import { csv, offer, pngOfSvg } from "../download";
import { clamp, rounded, whole } from "../format";
import { geographyOf } from "../map/basemap";
import { MapFigure } from "../map/figure";
import type { Product, Tools } from "../product";
import type { BitRow, BitTexts, MomentsBody, PageView, StatisticRow } from "../views";
import { addPicture, barTable } from "./bars";
import { layerCsv, mapPanel } from "./map";

const REACH = [-0.6, 1.6]; // shares that are drawn: noise beyond them lies at the edge

/** The values' axis: the mean with its interval, and one standard deviation on each side where it is known. */
export function spreadChart(body: MomentsBody, mean: StatisticRow): ChartOptions {
  const wide = Math.max(body.deviation ?? 0, 2 * (mean.high - mean.low), (body.limits[1] - body.limits[0]) / 1000);
  const domain = [Math.max(Math.min(mean.low, mean.value - 3 * wide), body.limits[0]), Math.min(Math.max(mean.high, mean.value + 3 * wide), body.limits[1])] as const;
  const { deviation } = body;
  return {
    title: `Where ${body.column} lies`,
    description: `${mean.name} ${mean.text}, ${mean.range} at 95%.${deviation === null ? "" : ` One standard deviation of the values, ${rounded(deviation, 2)}, on each side.`}`,
    x: { label: body.column, domain }, y: { label: "", domain: [0, 1], names: [] }, height: () => 150,
    marks: [
      ...(deviation === null ? [] : [{ kind: "band", points: [[mean.value - deviation, 0.2, 0.8], [mean.value + deviation, 0.2, 0.8]] } as const]),
      { kind: "lying", style: "mark", points: [[0.5, mean.low, mean.high]] }, { kind: "dots", style: "mark", points: [[mean.value, 0.5]] },
    ],
    keys: [["mark", `${mean.name.toLowerCase()} with its 95% interval`], ...(deviation === null ? [] : [["s0", "one standard deviation of the values on each side"] as const])],
  };
}

/** How often each bit of a quantity is set, or its thresholds are reached. */
export function bitChart(bits: BitRow[], quantity: string, texts: BitTexts): ChartOptions {
  const ends = bits.flatMap((bit) => [bit.low, bit.high]).filter((end) => end !== null);
  const [low, high] = [Math.max(Math.min(0, ...ends), REACH[0]) - 0.03, Math.min(Math.max(1, ...ends), REACH[1]) + 0.03];
  const known = bits.map((bit, i) => ({ bit, i })).filter(({ bit }) => bit.share !== null);
  return {
    title: `${texts.share}, of ${quantity}`,
    description: "Bars are shares of users, whiskers 95% intervals. Shares outside 0% to 100% are noise.",
    x: { label: `${texts.place} ${quantity}`, domain: [-0.6, bits.length - 0.4], names: bits.map((bit) => bit.place) },
    y: { label: texts.share, domain: [low, high], format: (share) => `${Math.round(100 * share)}%`.replace("-", "\u2212") },
    marks: [
      { kind: "bars", bars: known.map(({ bit, i }) => [i - 0.38, i + 0.38, bit.share ?? 0, bit.dropped ? "dropped" : "s0"] as const) },
      { kind: "upright", style: "mark", points: known.map(({ bit, i }) => [i, bit.low ?? 0, bit.high ?? 0] as const) },
      ...bits.flatMap((bit, i) => (bit.share === null ? [{ kind: "text", x: i, y: 0.03, text: "?", anchor: "middle" } as const] : [])),
    ],
    keys: [["s0", "counts"], ...(bits.some((bit) => bit.dropped) ? [["dropped", "probably empty"] as const] : [])],
  };
}

function bitSection(body: MomentsBody, tools: Tools, open: boolean): HTMLElement {
  const names = [...new Set(body.bits.map((bit) => bit.quantity))];
  const box = h("details", { class: "bits", open });
  box.append(h("summary", {}, body.bit_texts.title), h("p", { class: "quiet" }, body.bit_texts.about));
  let figure: ChartFigure | null = null;
  const show = (place: number): void => {
    const bits = body.bits.filter((bit) => bit.quantity === names[place]);
    const options = bitChart(bits, names[place], body.bit_texts);
    if (figure) figure.draw(options);
    else figure = new ChartFigure(box, options, tools);
    const share = (value: number): string => `${rounded(100 * value, 1)}%`;
    figure.setTip(bits.map((_, i) => i), (i): Tip => {
      const { share: value, low, high, reports, dropped, place: adds } = bits[i];
      const facts: [string, string][] = [["Place", adds], ["Reports", `about ${whole(reports)}`], ...(dropped ? [["Used", "hardly: probably empty"] as [string, string]] : [])];
      return value === null || low === null || high === null ? { x: i, y: 0, value: "not known", margin: "too few reports for an estimate", facts }
        : { x: i, y: value, value: `${share(value)} of users`, margin: `${share(low)} to ${share(high)} at 95%`, facts };
    });
  };
  if (names.length > 1) box.append(choice("Of", names, 0, show));
  const first = (): void => {
    if (box.open && !figure) show(0);
  };
  box.addEventListener("toggle", first);
  queueMicrotask(first);
  return box;
}

function answer(body: MomentsBody): HTMLElement {
  const [first, ...others] = body.statistics;
  return h("section", { class: "answer" }, h("p", {}, h("span", { class: "quiet" }, `${first.name} of ${body.column}`), h("b", {}, first.text), h("span", {}, `${first.range}, 95% interval`)),
    others.length > 0 && h("dl", {}, others.map((one) => h("div", {}, h("dt", {}, one.name), h("dd", {}, one.text, h("small", {}, one.range))))));
}

export const showMoments: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  const body = view.body as MomentsBody;
  const pledge = h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report")));
  if (body.map) {
    const inner = h("div", { class: "product map" });
    root.append(h("div", {}, inner)); // the headline has the value of all users
    const figure = new MapFigure(inner, body.map.region, { label: view.title, finestMetres: body.map.finest_metres, missing: body.map.missing, start: body.map.start }, tools);
    geographyOf(view, tools)(figure);
    const { panel, current, caption } = mapPanel(figure, body.map, tools);
    panel.append(pledge);
    inner.append(panel);
    tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await figure.toPNG(caption(view))));
    tools.addButton("Table", () => offer(`${view.file_name}.csv`, layerCsv(figure, current()[0])));
    if (body.bits.length) root.append(h("div", { class: "board" }, bitSection(body, tools, false)));
    return;
  }
  const board = h("div", { class: "board" }, answer(body));
  const reading = body.groups.length ? "The dot is the estimate; the line is its 95% interval for this group only (pointwise). If the line does not cross the dashed one, the group differs from all users."
    : body.reading;
  root.append(board, h("aside", { class: "panel", "aria-label": "Guarantee" }, h("section", {}, h("h2", {}, "How to read it"), h("p", { class: "quiet" }, reading)), pledge));
  const [first] = body.statistics;
  if (!body.groups.length) {
    const chart = new ChartFigure(board, spreadChart(body, first), tools);
    chart.setTip([first.value], () => ({ x: first.value, y: 0.5, value: `${first.name} ${first.text}`, margin: `${first.range} at 95%` }));
    tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await pngOfSvg(chart.svg, tools.theme.colour("--ground"))));
    tools.addButton("Table", () => offer(`${view.file_name}.csv`, csv(["statistic", "value", "low", "high"], body.statistics.map((one) => [one.name, one.value, one.low, one.high]))));
  } else {
    const place = h("div");
    let number = clamp(tools.link.index("statistic", body.groups.length, 0), 0, body.groups.length - 1);
    let toCsv = (): string => "";
    const show = (): void => {
      const made = barTable(body.groups[number], "groups", `${body.statistics[number].name}, 95%`, tools);
      toCsv = made.toCsv;
      place.replaceChildren(h("p", { class: "quiet" }, body.groups[number].explanation), made.element);
    };
    if (body.groups.length > 1) board.append(choice("Statistic", body.statistics.slice(0, body.groups.length).map((one) => one.name), number, (chosen) => {
      number = chosen;
      tools.link.set("statistic", chosen || null);
      show();
    }));
    board.append(place);
    show();
    tools.addButton("Table", () => offer(`${view.file_name}.csv`, toCsv()));
    addPicture(view, tools);
  }
  if (body.bits.length) board.append(bitSection(body, tools, !body.groups.length));
};
