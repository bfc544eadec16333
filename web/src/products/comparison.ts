// Methods compared on exact data: the methods at one setting with their pictures, then error curves over settings.
import { ChartFigure, type Mark } from "../chart/figure";
import { h, svg } from "../dom";
import { csv, offer, pngOfSvg } from "../download";
import { clamp, significant } from "../format";
import { coloursOf } from "../map/colours";
import { Legend } from "../map/legend";
import type { Product, Tools } from "../product";
import type { Mode } from "../theme";
import type { ComparisonBody, Measure, MethodRow, PageView } from "../views";

type Value = string | number | boolean | null;
type Setting = Record<string, Value>;
const STYLES = 6;
const BY_TRUTH = " (level by truth)";
const isNumber = (value: unknown): value is number => typeof value === "number";

/** What a comparison holds, asked by setting. */
export class Methods {
  readonly varied: string[];
  /** Private methods first, then what is not private, then what chose its level by the truth. */
  readonly names: string[];
  readonly choices = new Map<string, { value: Value; text: string }[]>();

  constructor(readonly body: ComparisonBody) {
    this.varied = [...body.shared, ...body.own];
    const rank = (row: MethodRow): number => (row.private ? 0 : this.isByTruth(row.method) ? 2 : 1);
    this.names = [...new Set([...body.rows].sort((a, b) => rank(a) - rank(b)).map((row) => row.method))];
    for (const name of this.varied) {
      const texts = new Map(body.rows.filter((row) => name in row.options).map((row) => [row.options[name], row.texts[name]]));
      this.choices.set(name, [...texts].map(([value, text]) => ({ value, text })).sort((a, b) => (isNumber(a.value) && isNumber(b.value) ? a.value - b.value : String(a.value).localeCompare(String(b.value)))));
    }
  }

  isByTruth(method: string): boolean {
    return method.endsWith(BY_TRUTH);
  }

  isPrivate(method: string): boolean {
    return this.body.rows.some((row) => row.method === method && row.private);
  }

  /** The rows of a method that have the setting's value of every option that they have, but for the option `free`. */
  rows(method: string, setting: Setting, free: string | null = null): MethodRow[] {
    return this.body.rows.filter((row) => row.method === method && this.varied.every((name) => name === free || !(name in row.options) || row.options[name] === setting[name]));
  }

  /** The methods by a metric at a setting, the best first; private ones before others. */
  ranked(setting: Setting, metric: number): { method: string; row: MethodRow | undefined }[] {
    const { name, better } = this.body.metrics[metric];
    const mean = (row: MethodRow | undefined): number => {
      const value = row?.metrics[name][0];
      return isNumber(value) ? (better === "lower" ? value : -value) : Infinity;
    };
    const group = (method: string): number => (this.isPrivate(method) ? 0 : this.isByTruth(method) ? 2 : 1);
    return this.names.map((method) => ({ method, row: this.rows(method, setting).at(0) }))
      .sort((a, b) => group(a.method) - group(b.method) || mean(a.row) - mean(b.row) || 0);
  }

  /** The class of a method's marks: a method that chose by the truth looks like the method itself, drawn thin. */
  style(method: string): string {
    const own = this.names.filter((one) => this.isPrivate(one)).findIndex((one) => one === method || one + BY_TRUTH === method);
    return own < 0 ? "mark lead" : `s${own % STYLES}${this.isByTruth(method) ? " lead" : ""}`;
  }

  /** A setting in words. */
  words(setting: Setting, without: string | null = null): string {
    return this.varied.filter((name) => name !== without).map((name) => `${name} ${this.choices.get(name)?.find(({ value }) => value === setting[name])?.text ?? ""}`).join(", ");
  }
}

/** Paints a picture, whose grey says how dense a place is, in the colours of the theme. */
async function paint(canvas: HTMLCanvasElement, address: string, mode: Mode): Promise<void> {
  const picture = new Image();
  picture.src = address;
  await picture.decode();
  Object.assign(canvas, { width: picture.naturalWidth, height: picture.naturalHeight });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  if (!pen) return;
  pen.drawImage(picture, 0, 0);
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  const colours = coloursOf("count", mode);
  for (let i = 0; i < pixels.data.length; i += 4) pixels.data.set(colours[pixels.data[i]], i);
  pen.putImageData(pixels, 0, 0);
}

/** The cards of the methods at a setting: truth, private methods from best to worst, and what is not private. */
function cards(methods: Methods, view: PageView, setting: Setting, metric: number, mode: Mode): { shown: HTMLElement[]; folded: HTMLElement[] } {
  const { body } = methods;
  const region = view.manifest.region as Record<string, number> | undefined;
  const ratio = region ? ((region.east - region.west) * Math.cos((((region.north + region.south) / 2) * Math.PI) / 180)) / (region.north - region.south) : 1;
  const card = (name: string, label: string, picture: number | null | undefined, facts: HTMLElement | null, absent: string): HTMLElement => {
    const canvas = h("canvas", { role: "img", "aria-label": name === "truth" ? "The exact density" : `${name}: the estimated density` });
    canvas.style.aspectRatio = String(clamp(Number.isFinite(ratio) ? ratio : 1, 0.4, 2.5));
    const has = isNumber(picture);
    if (has) void paint(canvas, body.pictures[picture], mode);
    const key = name === "truth" ? null : svg("svg", { class: "chart key", width: 22, height: 12, "aria-hidden": "true" }, svg("line", { class: `line ${methods.style(name)}`, x2: 22, y1: 6, y2: 6 }));
    return h("figure", { class: "card" }, has ? canvas : h("p", { class: "absent" }, absent), h("figcaption", {}, h("h3", {}, key, name, label && h("small", {}, label)), facts));
  };
  const ranked = methods.ranked(setting, metric);
  const made = ranked.map(({ method, row }) => {
    const facts = row ? h("dl", {}, body.metrics.map(({ name, better }) => {
      const values = ranked.filter((one) => methods.isPrivate(one.method)).map((one) => one.row?.metrics[name][0]).filter(isNumber);
      const best = methods.isPrivate(method) && values.length > 1 && row.metrics[name][0] === (better === "lower" ? Math.min(...values) : Math.max(...values));
      return [h("dt", {}, name), h("dd", {}, best ? [h("b", {}, row.metrics[name][2]), h("span", { class: "unseen" }, ", best")] : row.metrics[name][2])];
    })) : null;
    const label = methods.isPrivate(method) ? "" : "not private";
    return card(method, label, row?.picture, facts, row ? "No picture of this setting" : "Not run at this setting");
  });
  const folded = ranked.map(({ method }) => methods.isByTruth(method));
  return { shown: [card("truth", "exact", 0, null, ""), ...made.filter((_, i) => !folded[i])], folded: made.filter((_, i) => folded[i]) };
}

/** A power of ten, or a number where people write it out. */
export const amount = (value: number): string => (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6) ? significant(value) : value.toExponential(1).replace(/\.0e/, "e"));

/** An error curve: a metric against an option, one line for each method. */
class Curves {
  private metric: number;
  private along: string;
  private chart: ChartFigure | null = null;
  private readonly truths = h("input", { type: "checkbox" });

  constructor(private readonly methods: Methods, root: HTMLElement, private readonly setting: () => Setting, tools: Tools) {
    const { metrics } = methods.body;
    const numbers = (name: string): boolean => (methods.choices.get(name) ?? []).every(({ value }) => isNumber(value));
    const options = methods.varied.filter(numbers).sort((a, b) => (methods.choices.get(b)?.length ?? 0) - (methods.choices.get(a)?.length ?? 0));
    this.metric = tools.link.index("metric", metrics.length, 0);
    this.along = options.includes(tools.link.get("along") ?? "") ? String(tools.link.get("along")) : options[0];
    if (!options.length) return;
    const select = (label: string, texts: string[], chosen: number, choose: (place: number) => void): HTMLElement => {
      const element = h("select", {}, texts.map((text, i) => h("option", { value: i, selected: i === chosen }, text)));
      element.addEventListener("change", () => {
        choose(Number(element.value));
        this.draw();
      });
      return h("label", {}, `${label} `, element);
    };
    this.truths.addEventListener("change", () => this.draw());
    const figure = h("div");
    root.append(h("h2", {}, "Error curves"), h("div", { class: "controls" },
      select("Figure", metrics.map(({ name }) => name), this.metric, (place) => tools.link.set("metric", (this.metric = place) || null)),
      select("against", options, options.indexOf(this.along), (place) => tools.link.set("along", (this.along = options[place]))),
      methods.names.some((name) => methods.isByTruth(name)) && h("label", {}, this.truths, " level by truth")), figure);
    this.chart = new ChartFigure(figure, { title: "Error curves", description: "", x: { label: "", domain: [0, 1] }, y: { label: "", domain: [0, 1] }, marks: [] }, tools);
    this.draw();
  }

  get picture(): SVGSVGElement | null {
    return this.chart?.svg ?? null;
  }

  draw(): void {
    const { methods, along } = this;
    const { name, better } = methods.body.metrics[this.metric];
    const choices = methods.choices.get(along) ?? [];
    const xs = choices.map(({ value }) => Number(value));
    const lines = methods.names.filter((method) => this.truths.checked || !methods.isByTruth(method)).map((method) => {
      const rows = methods.rows(method, this.setting(), along);
      const flat = rows.length > 0 && !(along in rows[0].options);
      const points = (flat ? xs.map((x) => ({ x, row: rows[0] })) : rows.map((row) => ({ x: Number(row.options[along]), row })))
        .flatMap(({ x, row }) => (isNumber(row.metrics[name][0]) ? [{ x, mean: row.metrics[name][0], error: row.metrics[name][1] ?? 0, text: row.metrics[name][2] }] : [])).sort((a, b) => a.x - b.x);
      return { method, flat, points, style: methods.style(method) };
    }).filter(({ points }) => points.length);
    const means = lines.flatMap(({ points }) => points.map(({ mean }) => mean));
    const ends = lines.flatMap(({ points }) => points.flatMap(({ mean, error }) => [mean - error, mean + error]));
    const [low, high] = [Math.min(...means, ...ends), Math.max(...means, ...ends, 0)];
    const logs = (values: number[]): boolean => Math.min(...values) > 0 && Math.max(...values) / Math.min(...values) > 10;
    const least = Math.min(...means.filter((mean) => mean > 0));
    const log = means.length > 0 && logs(means);
    const domain: [number, number] = !means.length ? [0, 1] : log ? [Math.max(low, least / 2) / 1.1, high * 1.1] : [better === "lower" ? Math.min(low, 0) : low, high || 1];
    const x = { label: along, domain: [xs[0], xs[xs.length - 1]] as [number, number], kind: logs(xs) ? "log" as const : "linear" as const, format: amount, ticks: xs };
    const marks: Mark[] = lines.flatMap(({ points, style, flat }): Mark[] => [
      { kind: "line", style, points: points.map(({ x: at, mean }) => [at, mean]) },
      ...(flat ? [] : [{ kind: "upright" as const, style, points: points.map(({ x: at, mean, error }) => [at, Math.max(mean - error, domain[0]), mean + error] as const) }, { kind: "dots" as const, style, points: points.map(({ x: at, mean }) => [at, mean] as const) }]),
    ]);
    const others = methods.words(this.setting(), along);
    this.chart?.draw({
      title: `${name} against ${along}`, description: `${name}, ${better} is better${others && `, at ${others}`}.`, marks, x,
      y: { label: `${name}, ${better} is better${others && `, at ${others}`}`, domain, kind: log ? "log" : "linear", format: amount },
      keys: lines.map(({ method, style }) => [style, methods.isPrivate(method) ? method : `${method} (not private)`]),
    });
    this.chart?.setTip(xs, (place) => {
      const found = lines.flatMap(({ method, points }) => points.filter((point) => point.x === xs[place]).map((point) => ({ method, ...point })))
        .sort((a, b) => (better === "lower" ? a.mean - b.mean : b.mean - a.mean));
      return found.length ? { x: xs[place], y: found[0].mean, value: `${along} ${choices[place].text}`, facts: found.map(({ method, text }) => [method, text] as const) } : null;
    });
  }
}

export const showComparison: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  const body = view.body as ComparisonBody;
  const methods = new Methods(body);
  const setting: Setting = {};
  const selects = new Map<string, HTMLSelectElement>();
  const readLink = (): void => {
    for (const name of methods.varied) {
      const found = methods.choices.get(name)?.find(({ text }) => text === tools.link.get(name));
      setting[name] = found ? found.value : body.start[name];
    }
  };
  readLink();
  const grid = h("div", { class: "cards" });
  const folded = h("div", { class: "cards" });
  const details = h("details", {}, h("summary", {}, "With the level chosen by the truth, not private"), folded);
  const curves = h("section", { class: "board" });
  const legend = new Legend(tools.theme);
  const empty: Measure = { name: "", kind: "count", unit: "", value: [], low: [], high: [], uncertain: [], scale: body.scale, listed: [], listed_note: "" };
  legend.show(empty, null, "");
  legend.element.querySelector(".legend-title")?.replaceChildren(`Density, ${body.scale.unit}; the same colours in all pictures`);
  const controls = h("div", { class: "controls", role: "group", "aria-label": "Setting" }, methods.varied.map((name) => {
    const choices = methods.choices.get(name) ?? [];
    const select = h("select", {}, choices.map(({ text }, i) => h("option", { value: i }, text)));
    selects.set(name, select);
    select.addEventListener("change", () => {
      const { value, text } = choices[Number(select.value)];
      setting[name] = value;
      tools.link.set(name, value === body.start[name] ? null : text);
      show();
      tools.say(`Shown: ${methods.words(setting)}`);
    });
    return h("label", {}, `${name} `, select);
  }));
  root.append(h("section", { class: "board" }, h("h2", {}, "Methods"), controls, grid, legend.element, details), curves);
  const chart = new Curves(methods, curves, () => setting, tools);
  const show = (): void => {
    for (const [name, select] of selects) select.value = String(methods.choices.get(name)?.findIndex(({ value }) => value === setting[name]) ?? 0);
    const made = cards(methods, view, setting, 0, tools.theme.mode);
    grid.replaceChildren(...made.shown);
    folded.replaceChildren(...made.folded);
    details.hidden = made.folded.length === 0;
    chart.draw();
  };
  show();
  tools.theme.onChange(show);
  tools.link.onChange(() => {
    readLink();
    show();
  });
  tools.addButton("Picture", async () => {
    if (chart.picture) offer(`${view.release_id}-curves.png`, await pngOfSvg(chart.picture, tools.theme.colour("--ground")));
  });
  tools.addButton("Table", () => offer(`${view.release_id}.csv`, csv(["method", "private", ...methods.varied, ...body.metrics.flatMap(({ name }) => [name, `${name} error`])],
    body.rows.map((row) => [row.method, row.private, ...methods.varied.map((name) => row.options[name] ?? null), ...body.metrics.flatMap(({ name }) => [row.metrics[name][0], row.metrics[name][1]])]))));
};
