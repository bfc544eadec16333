// Ranked items, prefixes or groups: a table that one can sort, filter and unfold, with a bar and an interval in each row.
import { choice, h, svg } from "../dom";
import { csv, offer } from "../download";
import { clamp, interval, known, niceStep, percent, significant, whole, within } from "../format";
import type { Product, Tools } from "../product";
import type { Bar, BarsBody, PageView } from "../views";

const ROWS = 60; // at first; every further click doubles them
type Key = "name" | "value" | "users";

/** Rows of a table of bars, in the order shown: those of one level, and within open ones the rows that extend them. */
export class BarRows {
  readonly levels: number[];
  readonly children = new Map<number, number[]>();
  readonly toggled = new Set<number>();
  level: number;
  by: Key = "value";
  down = true;
  filter = "";
  private readonly alphabet = new Intl.Collator("en", { numeric: true });

  constructor(readonly body: BarsBody) {
    const length = (level: number): number => level || Infinity; // 0 is a whole item, the longest
    this.levels = [...new Set(body.bars.map((bar) => bar.level))].sort((a, b) => length(a) - length(b));
    this.level = this.levels[this.levels.length - 1] ?? 0;
    body.bars.forEach((bar, i) => {
      if (bar.parent >= 0) this.children.set(bar.parent, [...(this.children.get(bar.parent) ?? []), i]);
    });
  }

  /** [row, depth in the tree] of what is shown. */
  shown(): [number, number][] {
    const { bars } = this.body;
    const found = this.found();
    const rows: [number, number][] = [];
    const visit = (i: number, depth: number): void => {
      rows.push([i, depth]);
      if (this.isOpen(i)) this.sorted((this.children.get(i) ?? []).filter((child) => found[child] || found[i] === 1)).forEach((child) => visit(child, depth + 1));
    };
    this.sorted(bars.map((_, i) => i).filter((i) => bars[i].level === this.level && found[i])).forEach((i) => visit(i, 0));
    return rows;
  }

  isOpen(i: number): boolean {
    return this.children.has(i) && (this.filter !== "" && this.found()[i] === 2) !== this.toggled.has(i);
  }

  /** 1: the name holds the filter's text; 2: only a row inside it does; 0: neither. */
  private found(): number[] {
    const text = this.filter.toLowerCase();
    const found: number[] = this.body.bars.map((bar) => (bar.name.toLowerCase().includes(text) ? 1 : 0));
    if (text) for (let i = found.length - 1; i >= 0; i--) {
      const { parent } = this.body.bars[i]; // a prefix stands before what extends it
      if (found[i] && parent >= 0 && !found[parent]) found[parent] = 2;
    }
    return found;
  }

  /** Sorting by value uses the lower end of the interval. */
  private sorted(rows: number[]): number[] {
    const { bars } = this.body;
    const size = (bar: Bar): number => (this.by === "users" ? bar.users ?? -Infinity : bar.low);
    const order = this.by === "name" ? (a: number, b: number) => this.alphabet.compare(bars[b].name, bars[a].name) : (a: number, b: number) => size(bars[b]) - size(bars[a]);
    return [...rows].sort((a, b) => (this.down ? order(a, b) : order(b, a)) || a - b);
  }
}

interface BarScale {
  readonly at: (value: number) => number;
  readonly ticks: number[];
}

/** Where values stand, in 0..1: counts from 0; others in their own range, which no poorly known row widens much. */
export function barScale(bars: Bar[], counts: boolean, logarithmic: boolean): BarScale {
  if (!bars.length) return { at: () => 0, ticks: [] };
  const [least, most] = [Math.min(...bars.map((bar) => bar.value)), Math.max(...bars.map((bar) => bar.value))];
  const reach = counts ? Infinity : 1.5 * (most - least) || Infinity;
  let low = counts ? 0 : Math.min(...bars.map((bar) => Math.max(bar.low, least - reach)));
  let high = Math.max(...bars.map((bar) => Math.min(bar.high, most + reach)));
  if (!(high > low)) [low, high] = [low - 1, high + 1];
  if (logarithmic) {
    low = Math.max(Math.min(...bars.map((bar) => bar.low)) / 2, high / 1e6, 1e-9);
    const powers = Array.from({ length: 12 }, (_, i) => 10 ** (Math.ceil(Math.log10(low)) + i)).filter((tick) => tick < high);
    return { at: (value) => clamp(Math.log(Math.max(value, low) / low) / Math.log(high / low), 0, 1), ticks: powers };
  }
  const step = niceStep((high - low) / 5);
  const ticks = Array.from({ length: 12 }, (_, i) => Number(((Math.ceil(low / step) + i) * step).toPrecision(12))).filter((tick) => tick <= high);
  return { at: (value) => clamp((value - low) / (high - low), 0, 1), ticks };
}

const at = (share: number): string => `${(100 * share).toFixed(2)}%`;

/** The table with its controls. `key` is its name in the link, `unit` of the column of values. */
export function barTable(body: BarsBody, key: string, value: string, tools: Tools): { element: HTMLElement; toCsv: () => string } {
  const rows = new BarRows(body);
  const counts = body.reference === null;
  const grouped = body.bars.some((bar) => bar.users !== null);
  let [most, logarithmic] = [ROWS, false];
  const axis = svg("svg", { class: "axis", "aria-hidden": "true" });
  const list = h("tbody");
  const status = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", class: "more" }, "Show more");
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", autocomplete: "off", spellcheck: "false" });
  const head = (by: Key, text: string, style: string): HTMLTableCellElement => {
    const made = h("button", { type: "button" }, text);
    made.addEventListener("click", () => {
      rows.down = rows.by === by ? !rows.down : by !== "name";
      rows.by = by;
      show();
    });
    return h("th", { scope: "col", class: style, "data-by": by }, made);
  };
  const heads = h("tr", {}, h("th", { scope: "col", class: "rank" }, h("span", { class: "unseen" }, "Rank")), head("name", body.noun.charAt(0).toUpperCase() + body.noun.slice(1), "name"),
    h("th", { scope: "col", class: "plot" }, h("span", { class: "unseen" }, "Bar"), axis), head("value", value, "number"), grouped ? head("users", "Users, about", "number") : h("th", { scope: "col", class: "number" }, `Share of all ${body.unit === "records" ? "users" : body.unit}`));

  function plot(bar: Bar, scale: BarScale): SVGSVGElement {
    const [low, middle, high] = [bar.low, bar.value, bar.high].map(scale.at);
    return svg("svg", { class: "bar-plot", "aria-hidden": "true" }, scale.ticks.map((tick) => svg("line", { class: "grid", x1: at(scale.at(tick)), x2: at(scale.at(tick)), y2: "100%" })),
      counts && svg("rect", { class: "fill", width: at(middle), y: "26%", height: "48%" }),
      body.reference !== null && svg("line", { class: "reference", x1: at(scale.at(body.reference)), x2: at(scale.at(body.reference)), y2: "100%" }),
      svg("line", { class: counts ? "whisker" : "whisker wide", x1: at(low), x2: at(high), y1: "50%", y2: "50%" }), svg("circle", { class: "dot", cx: at(middle), cy: "50%", r: counts ? 2.5 : 4.5 }));
  }
  function nameOf(i: number, depth: number): HTMLElement {
    const bar = body.bars[i];
    const stem = depth ? body.bars[bar.parent].name : "";
    const cut = bar.name.startsWith(stem) ? stem.length : 0;
    const words = h("bdi", { title: bar.name }, cut > 0 && h("span", { class: "quiet" }, bar.name.slice(0, cut)), bar.name.slice(cut) || (cut ? "" : h("em", {}, "(empty)")), bar.cut && h("span", { class: "quiet" }, "\u2026"));
    const inside = rows.children.get(i);
    const cell = h("th", { scope: "row", class: "name" }, words);
    if (inside) {
      const fold = h("button", { type: "button", class: "fold", "aria-expanded": String(rows.isOpen(i)), "aria-label": `${inside.length} inside ${bar.name}`, "data-row": i }, "\u203a");
      fold.addEventListener("click", () => {
        if (!rows.toggled.delete(i)) rows.toggled.add(i);
        show();
        list.querySelector<HTMLElement>(`[data-row="${i}"]`)?.focus();
      });
      cell.prepend(fold);
    }
    cell.style.paddingLeft = `${1.1 * Math.min(depth, 8)}rem`;
    return cell;
  }
  function show(): void {
    const shown = rows.shown();
    const roots = shown.filter(([, depth]) => !depth).map(([i]) => i);
    const scale = barScale(roots.map((i) => body.bars[i]), counts, logarithmic);
    const ranks = new Map([...body.bars.keys()].filter((i) => body.bars[i].level === rows.level).sort((a, b) => body.bars[b].low - body.bars[a].low || a - b).map((i, rank) => [i, rank + 1]));
    axis.replaceChildren(...scale.ticks.filter((_, i) => i % Math.ceil(scale.ticks.length / 5) === 0).map((tick) => svg("text", { x: at(scale.at(tick)), y: 14, "text-anchor": scale.at(tick) < 0.05 ? "start" : scale.at(tick) > 0.93 ? "end" : "middle" }, tick >= 1e4 ? `${significant(tick / 1000)}k` : significant(tick))));
    list.replaceChildren(...shown.slice(0, most).map(([i, depth]) => {
      const bar = body.bars[i];
      return h("tr", { class: depth ? "inner" : "outer" }, h("td", { class: "rank" }, depth ? "" : String(ranks.get(i))), nameOf(i, depth), h("td", { class: "plot" }, plot(bar, scale)),
        h("td", { class: "number" }, within(bar.value, bar.low, bar.high), h("small", {}, interval(bar.low, bar.high))),
        h("td", { class: "number" }, grouped ? (bar.users === null ? "" : known(bar.users, Math.max(bar.users / 50, 1))) : bar.share === null ? "" : bar.share < 1e-4 ? "< 0.01%" : percent(bar.share, bar.share < 0.1 ? 2 : 1)));
    }));
    heads.querySelectorAll("[data-by]").forEach((one) => one.setAttribute("aria-sort", one.getAttribute("data-by") === rows.by ? (rows.down ? "descending" : "ascending") : "none"));
    const one = rows.level === rows.levels[rows.levels.length - 1] ? body.noun : "prefix";
    const noun = `${one}${roots.length === 1 ? "" : one.endsWith("x") ? "es" : "s"}`;
    status.textContent = shown.length ? `${whole(roots.length)} ${noun}${rows.filter ? " match" : ""}` : rows.filter ? "No published name contains this text. Unpublished names may still exist." : "Nothing was published: no item has enough users.";
    more.hidden = shown.length <= most;
  }
  search.addEventListener("input", () => {
    rows.filter = search.value;
    rows.toggled.clear();
    tools.link.set(`${key}.filter`, search.value || null);
    show();
  });
  more.addEventListener("click", () => {
    const before = list.children.length;
    most *= 2;
    show();
    list.children[before]?.querySelector("th")?.setAttribute("tabindex", "-1");
    list.children[before]?.querySelector("th")?.focus();
  });
  const log = h("input", { type: "checkbox", role: "switch" });
  log.addEventListener("change", () => {
    logarithmic = log.checked;
    show();
  });
  const levels = rows.levels.length > 1 && choice("Prefix length", rows.levels.map((level) => (level ? String(level) : "whole")), rows.levels.indexOf(rows.level), (place) => {
    rows.level = rows.levels[place];
    most = ROWS;
    tools.link.set(`${key}.level`, rows.level);
    show();
  });
  const read = (): void => {
    rows.level = rows.levels.find((level) => String(level) === tools.link.get(`${key}.level`)) ?? rows.level;
    search.value = rows.filter = tools.link.get(`${key}.filter`) ?? "";
    if (levels) levels.querySelectorAll("input").forEach((one, i) => (one.checked = rows.levels[i] === rows.level));
    show();
  };
  tools.link.onChange(read);
  read();
  const tree = h("div", { class: "controls" }, search, levels, counts && h("label", {}, log, " Logarithmic scale"), status);
  const element = h("div", { class: "bars-table" }, tree, h("table", { class: `bars${counts ? "" : " intervals"}` }, h("thead", {}, heads), list), more);
  const toCsv = (): string => csv([body.noun, "level", "value", "low", "high", ...(grouped ? ["users"] : ["share"])], rows.shown().map(([i]) => {
    const bar = body.bars[i];
    return [bar.name, bar.level, bar.value, bar.low, bar.high, grouped ? bar.users : bar.share];
  }));
  return { element, toCsv };
}

export const showBars: Product = (view, root, tools) => {
  const body = view.body as BarsBody;
  const { element, toCsv } = barTable(body, "items", `${body.unit.charAt(0).toUpperCase()}${body.unit.slice(1)}, 95%`, tools);
  root.append(h("div", { class: "board" }, h("p", { class: "explanation" }, body.explanation), element));
  root.append(h("aside", { class: "panel", "aria-label": "Guarantee" }, h("section", {}, h("h2", {}, "How to read a row"), h("p", { class: "quiet" }, "The bar is the estimate; the line across its end is the 95% interval. Rows are ordered by the lower end of the interval."),
    h("p", { class: "quiet" }, `May be hidden: ${view.chips.find((chip) => chip.term === "May be hidden")?.text ?? "what too few users share"}.`)),
  h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report")))));
  tools.addButton("Table", () => offer(`${view.file_name}.csv`, toCsv()));
  addPicture(view, tools);
};

/** A button that opens the picture next to the page, for what is a table on the page. */
export function addPicture(view: PageView, tools: Tools): void {
  if (view.picture) tools.addButton("Picture", () => void window.open(view.picture ?? "", "_blank", "noopener"));
}
