// The chart of every page: one SVG of axes and marks, with a tip, keys, and files of what it shows. Attributes only, no styles.
import { axisBottom, axisLeft } from "d3-axis";
import { type ScaleLinear, scaleLinear, scaleUtc } from "d3-scale";
import { select } from "d3-selection";
import { area, line } from "d3-shape";
import { h, svg } from "../dom";
import { clamp } from "../format";
import type { Tools } from "../product";

export interface Axis {
  readonly label: string;
  readonly domain: readonly [number, number];
  /** `time`: milliseconds. */
  readonly kind?: "linear" | "time";
  /** Names at 0, 1, 2, ... in place of numbers. */
  readonly names?: readonly string[];
  readonly format?: (value: number) => string;
  /** Where the ticks stand, as far as there is room; by default at round values. */
  readonly ticks?: readonly number[];
}

/** What is drawn, in the data's units. `style` is a class of style/chart.css, such as `s0` for the first series. */
export type Mark = { readonly style?: string } & (
  | { readonly kind: "line"; readonly points: readonly (readonly [number, number])[] }
  | { readonly kind: "band"; readonly points: readonly (readonly [x: number, low: number, high: number])[] }
  | { readonly kind: "bars"; readonly bars: readonly (readonly [from: number, to: number, value: number, style?: string])[] }
  | { readonly kind: "dots"; readonly points: readonly (readonly [number, number])[] }
  /** Intervals: upright at x, or lying at y. */
  | { readonly kind: "upright" | "lying"; readonly points: readonly (readonly [at: number, low: number, high: number])[] }
  | { readonly kind: "rule"; readonly x: number; readonly text?: string }
  | { readonly kind: "text"; readonly x: number; readonly y: number; readonly text: string; readonly anchor?: "start" | "middle" | "end"; readonly dx?: number }
);

/** What the tip says of a place, and where in the data it points. */
export interface Tip {
  readonly x: number;
  readonly y: number;
  readonly value: string;
  readonly margin?: string;
  readonly facts?: readonly (readonly [string, string])[];
}

export interface ChartOptions {
  /** What the chart shows, for screen readers and files. */
  readonly title: string;
  readonly description: string;
  readonly x: Axis;
  readonly y: Axis;
  readonly marks: readonly Mark[];
  /** Names of the styles that marks have, for the keys above the chart. */
  readonly keys?: readonly (readonly [style: string, name: string])[];
  /** Pixels, of a chart so many pixels wide; by default a little less than half of it. */
  readonly height?: (width: number) => number;
  /** Pixels left of the axis at least, so that charts above each other agree. */
  readonly left?: number;
}

const DIGIT = 7; // pixels of a character on an axis
const [ABOVE, BELOW, RIGHT] = [30, 48, 18];
const LABEL = 18; // pixels of BELOW that the label of x takes
type Position = (value: number) => number;

export class ChartFigure {
  readonly svg = svg("svg", { class: "chart", role: "img" });
  private readonly tip = h("div", { class: "tip", hidden: true });
  private readonly keys = h("ul", { class: "keys" });
  readonly element = h("div", { class: "chart-frame", tabindex: 0, role: "group" }, this.svg, this.tip);
  private options: ChartOptions;
  private stops: readonly number[] = [];
  private words: ((place: number) => Tip | null) | null = null;
  private place = -1;
  private lettered: [number, number][] = [];
  private x: Position = Number;
  private y: Position = Number;

  constructor(root: HTMLElement, options: ChartOptions, private readonly tools: Pick<Tools, "say">) {
    this.options = options;
    root.append(this.keys, this.element);
    this.element.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.element.addEventListener("pointerdown", (event) => this.point(this.under(event)));
    this.element.addEventListener("pointerleave", () => this.point(-1));
    this.element.addEventListener("blur", () => this.point(-1));
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(this.element);
    this.draw(options);
  }

  /** Draws something else in its place. */
  draw(options: Partial<ChartOptions>): void {
    this.options = { ...this.options, ...options };
    this.keys.replaceChildren(...(this.options.keys ?? []).map(([style, name]) => h("li", {}, svg("svg", { class: "chart key", width: 22, height: 12, "aria-hidden": "true" },
      svg("rect", { class: `bar ${style}`, y: 1, width: 22, height: 10 }), svg("line", { class: `line ${style}`, x2: 22, y1: 6, y2: 6 })), name)));
    this.element.setAttribute("aria-label", this.options.title);
    this.place = -1;
    this.paint();
  }

  /** Calls `listener` with the stop that a click or Enter chooses, and whether Shift is held. */
  onChoose(listener: (place: number, shift: boolean) => void): void {
    this.element.addEventListener("click", (event) => listener(this.under(event), event.shiftKey));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.place >= 0) listener(this.place, event.shiftKey);
    });
  }

  /** Where pointer and arrow keys stop, ascending in x, and what is said of each stop. */
  setTip(stops: readonly number[], words: (place: number) => Tip | null): void {
    this.stops = stops;
    this.words = words;
    this.place = -1;
  }

  private get below(): number {
    return this.options.x.label ? BELOW : BELOW - LABEL;
  }

  private paint(): void {
    const { x, y, marks, title, description } = this.options;
    const width = Math.max(this.element.clientWidth, 240);
    const height = Math.round(this.options.height?.(width) ?? clamp(width * 0.45, 240, 460));
    const write = { x: writer(x), y: writer(y) };
    const bottom = height - this.below;
    const upright = position(y, [bottom, ABOVE]);
    const rows = ticksOf(y, (bottom - ABOVE) / 44);
    const left = Math.max(this.options.left ?? 0, 14 + DIGIT * Math.max(...rows.map((value) => write.y(value).length), 1));
    const across = position(x, [left, width - RIGHT]);
    [this.x, this.y] = [across, upright];
    const room = DIGIT * Math.max(...ticksOf(x, 6).map((value) => write.x(value).length), 2) + 30;
    const columns = ticksOf(x, Math.max((width - RIGHT - left) / room, 2));
    const every = Math.max(Math.ceil((room * columns.length) / (width - RIGHT - left + room)), 1);
    const shown = x.names || x.ticks ? columns.filter((_, i) => (columns.length - 1 - i) % every === 0) : columns;
    const axes = svg("g", { class: "axes", "aria-hidden": "true" });
    const lower = svg("g", { transform: `translate(0,${bottom})` });
    const upper = svg("g", { transform: `translate(${left},0)` });
    select<SVGGElement, unknown>(lower).call(axisBottom<number>(across as never).tickValues(shown).tickFormat(write.x).tickSizeInner(5).tickSizeOuter(0).tickPadding(6));
    select<SVGGElement, unknown>(upper).call(axisLeft<number>(upright as never).tickValues(rows).tickFormat(write.y).tickSizeInner(-(width - RIGHT - left)).tickSizeOuter(0).tickPadding(8));
    const ends = [...lower.querySelectorAll("text")].at(-1);
    if (ends && across(shown[shown.length - 1]) + (DIGIT * (ends.textContent ?? "").length) / 2 > width) ends.setAttribute("text-anchor", "end");
    axes.append(upper, lower, svg("text", { class: "label", x: 2, y: 14 }, y.label), svg("text", { class: "label", x: width - RIGHT, y: height - 6, "text-anchor": "end" }, x.label));
    this.lettered = [];
    const drawn = svg("g", { class: "marks" }, marks.map((mark) => this.mark(mark, { left, right: width - RIGHT, top: ABOVE, bottom })));
    this.svg.replaceChildren(svg("title", {}, title), svg("desc", {}, description), axes, drawn, svg("g", { class: "here", "aria-hidden": "true" }));
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) this.svg.setAttribute(name, String(value));
    this.point(this.place, false);
  }

  private mark(mark: Mark, frame: { left: number; right: number; top: number; bottom: number }): SVGElement[] {
    const { x, y } = this;
    const style = (kind: string, own = mark.style ?? "s0"): string => `${kind} ${own}`;
    switch (mark.kind) {
      case "line":
        return [svg("path", { class: style("line"), d: line<readonly [number, number]>((one) => x(one[0]), (one) => y(one[1]))([...mark.points]) })];
      case "band":
        return [svg("path", { class: style("band"), d: area<readonly [number, number, number]>((one) => x(one[0]), (one) => y(one[1]), (one) => y(one[2]))([...mark.points]) })];
      case "bars":
        return mark.bars.map(([from, to, value, own]) => {
          const [top, base] = [Math.min(y(value), y(0)), Math.max(y(value), y(0))];
          return svg("rect", { class: style("bar", own ?? mark.style), x: fixed(x(from)), y: fixed(top), width: fixed(Math.max(x(to) - x(from), 0.5)), height: fixed(Math.max(base - top, 0.75)) });
        });
      case "dots":
        return mark.points.map((one) => svg("circle", { class: style("dot"), cx: fixed(x(one[0])), cy: fixed(y(one[1])), r: 4 }));
      case "upright":
        return mark.points.map(([at, low, high]) => whisker(style("whisker"), x(at), y(low), x(at), y(high)));
      case "lying":
        return mark.points.map(([at, low, high]) => whisker(style("whisker"), x(low), y(at), x(high), y(at)));
      case "rule": {
        const at = x(mark.x);
        const late = at > (frame.left + frame.right) / 2;
        const text = mark.text === undefined || !this.hasRoom(at, late, mark.text) ? []
          : [svg("text", { class: "words", x: fixed(at + (late ? -5 : 5)), y: fixed(frame.top + 10), "text-anchor": late ? "end" : "start" }, mark.text)];
        return [svg("line", { class: style("rule", mark.style ?? ""), x1: fixed(at), y1: fixed(frame.bottom), x2: fixed(at), y2: fixed(frame.top) }), ...text];
      }
      case "text":
        return [svg("text", { class: style("words", mark.style ?? ""), x: fixed(x(mark.x)), y: fixed(y(mark.y)), dx: mark.dx, "text-anchor": mark.anchor ?? "start" }, mark.text)];
    }
  }

  /** Whether the text beside an upright rule covers no other one's; keeps its room. */
  private hasRoom(x: number, late: boolean, text: string): boolean {
    const wide = DIGIT * text.length + 8;
    const [low, high] = late ? [x - wide, x] : [x, x + wide];
    if (this.lettered.some(([from, to]) => low < to && high > from)) return false;
    this.lettered.push([low, high]);
    return true;
  }

  // ------------------------------------------------------------------ the tip

  private under(event: MouseEvent): number {
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const apart = this.stops.map((stop) => Math.abs(this.x(stop) - at));
    return apart.length ? apart.indexOf(Math.min(...apart)) : -1;
  }

  private key(event: KeyboardEvent): void {
    const last = this.stops.length - 1;
    const next = { ArrowRight: this.place + 1, ArrowLeft: this.place < 0 ? last : this.place - 1, PageDown: this.place + 10, PageUp: this.place - 10, Home: 0, End: last, Escape: -1 }[event.key];
    if (next === undefined || last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.point(event.key === "Escape" ? -1 : clamp(next, 0, last));
  }

  /** Points at a stop, -1 for none; reads it out unless the chart was only painted again. */
  point(place: number, aloud = true): void {
    const changed = place !== this.place;
    this.place = place;
    const tip = place < 0 ? null : this.words?.(place) ?? null;
    this.tip.hidden = tip === null;
    const here = this.svg.querySelector(".here");
    if (tip === null) {
      here?.replaceChildren();
      return;
    }
    const [cx, cy] = [this.x(tip.x), this.y(tip.y)];
    here?.replaceChildren(svg("line", { x1: fixed(cx), x2: fixed(cx), y1: ABOVE, y2: Number(this.svg.getAttribute("height")) - this.below }), svg("circle", { cx: fixed(cx), cy: fixed(cy), r: 5 }));
    const facts = tip.facts ?? [];
    this.tip.replaceChildren(h("p", { class: "value" }, tip.value), h("p", { class: "margin" }, tip.margin ?? ""), h("dl", {}, facts.map(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])));
    const [wide, tall] = [this.element.clientWidth, this.svg.clientHeight];
    const beside = cx + 14 + this.tip.offsetWidth > wide ? cx - 14 - this.tip.offsetWidth : cx + 14;
    this.tip.style.transform = `translate(${clamp(beside, 4, Math.max(wide - this.tip.offsetWidth - 4, 4))}px,${clamp(cy - this.tip.offsetHeight / 2, 4, Math.max(tall - this.tip.offsetHeight - 4, 4))}px)`;
    if (changed && aloud) this.tools.say([tip.value, tip.margin, ...facts.map((fact) => fact.join(": "))].filter(Boolean).join(". "));
  }
}

const fixed = (value: number): number => Number(value.toFixed(2));

function whisker(style: string, x1: number, y1: number, x2: number, y2: number): SVGElement {
  const [dx, dy] = x1 === x2 ? [4, 0] : [0, 4];
  const end = (x: number, y: number): string => `M${fixed(x - dx)} ${fixed(y - dy)}L${fixed(x + dx)} ${fixed(y + dy)}`;
  return svg("path", { class: style, d: `M${fixed(x1)} ${fixed(y1)}L${fixed(x2)} ${fixed(y2)}${end(x1, y1)}${end(x2, y2)}` });
}

function position({ kind, domain }: Axis, range: [number, number]): Position {
  const scale = (kind === "time" ? scaleUtc() : scaleLinear()) as ScaleLinear<number, number>;
  const [low, high] = domain[0] < domain[1] ? domain : [domain[0] - 0.5, domain[0] + 0.5];
  return scale.domain([low, high]).range(range).clamp(true);
}

/** About so many round values on an axis. */
function ticksOf({ kind, domain, names, ticks }: Axis, count: number): number[] {
  if (ticks) return [...ticks];
  if (names) return names.map((_, i) => i);
  if (kind === "time") return scaleUtc().domain(domain).ticks(Math.max(Math.floor(count), 2)).map(Number);
  return scaleLinear().domain(domain).ticks(Math.max(Math.floor(count), 2));
}

function writer({ domain, names, format, kind }: Axis): (value: number) => string {
  if (names) return (value) => names[value] ?? "";
  if (format) return format;
  if (kind === "time") return (value) => new Date(value).toISOString().slice(0, 10);
  const size = Math.max(...domain.map(Math.abs));
  const options = size >= 1e6 ? { notation: "compact" as const, maximumSignificantDigits: 3 } : { maximumSignificantDigits: 6 };
  return (value) => value.toLocaleString("en", options).replace("-", "\u2212");
}
