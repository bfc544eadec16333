// Flows: arcs on a map, those from or to a chosen cell, the largest as a list, and a matrix of large cells.
import { button, choice, h } from "../dom";
import { csv, offer } from "../download";
import { atMost, capital, interval, notNegative, place, plural, significant, within } from "../format";
import { geographyOf } from "../map/basemap";
import { MapFigure } from "../map/figure";
import type { Scene } from "../map/ground";
import { captionOf, type Product, type Tools } from "../product";
import type { Bounds, FlowMatrix, FlowTable, FlowsBody, MapBody, PageView } from "../views";

const [ARCS, STEPS, LISTED, BEND] = [30, [10, 30, 60, 120, 250, 500, 1000], window.innerWidth < 1200 ? 8 : 12, 0.18]; // arcs at first; choices; flows of the list; of an arc's length
const CELLS = 0.3; // opacity of the cells under the arcs
type Point = [number, number];
type Cell = { level: number; x: number; y: number };
type Rings = [number, number][][];

/** The bounds of a cell in degrees. */
export function cellBounds({ west, south, east, north }: Bounds, level: number, x: number, y: number): Bounds {
  const [width, height] = [(east - west) / 2 ** level, (north - south) / 2 ** level];
  return { west: west + x * width, south: north - (y + 1) * height, east: west + (x + 1) * width, north: north - y * height };
}

/** The rows of flows that begin (way 1) or end (way 2) in a cell; all of them for way 0 or without a cell. */
export function flowsOf(flows: FlowTable, way: number, cell: Cell | null): number[] {
  const rows = flows.trips.map((_, row) => row);
  if (!way || !cell) return rows;
  const [xs, ys] = way === 1 ? [flows.origin_x, flows.origin_y] : [flows.destination_x, flows.destination_y];
  return rows.filter((row) => {
    const finer = flows.level[row] - cell.level;
    return finer >= 0 && xs[row] >> finer === cell.x && ys[row] >> finer === cell.y;
  });
}

/** The cell of a row of the map's layer, as flows name it: a zone is its row. */
export const cellOf = ({ layers: [layer] }: MapBody, row: number): Cell => layer.shapes ? { level: 0, x: row, y: 0 } : { level: layer.level[row], x: layer.x[row], y: layer.y[row] };

/** The borders of a cell or zone in degrees. */
export function outlineOf({ region, layers: [layer] }: MapBody, { level, x, y }: Cell): Rings {
  if (layer.shapes) return layer.shapes[x];
  const { west, south, east, north } = cellBounds(region, level, x, y);
  return [[[west, south], [east, south], [east, north], [west, north]]];
}

/** Where an arc to or from a cell or zone ends, in degrees. */
export function middleOf({ map, flows }: Pick<FlowsBody, "map" | "flows">, { level, x, y }: Cell): [number, number] {
  if (flows.centres) return flows.centres[x];
  const { west, south, east, north } = cellBounds(map.region, level, x, y);
  return [(west + east) / 2, (south + north) / 2];
}

/** The trips of a flow with their interval. */
export function tripWords(...row: [trips: number, low: number, high: number]): [string, string] {
  const [trips, low, high] = notNegative(...row);
  return [`about ${high > low ? within(trips, low, high) : significant(trips)} trips`, `${interval(low, high)}, 95% interval`];
}

/** The corners of an arrowhead that comes from `from` and ends at `tip`: the tip, then the two ends of its base. */
export function headOf(from: Point, [x, y]: Point, width: number): [Point, Point, Point] {
  const away = Math.hypot(x - from[0], y - from[1]) || 1;
  const [dx, dy] = [(x - from[0]) / away, (y - from[1]) / away];
  const [long, wide] = [5 + 1.6 * width, 2.5 + width];
  const [bx, by] = [x - long * dx, y - long * dy];
  return [[x, y], [bx - wide * dy, by + wide * dx], [bx + wide * dy, by - wide * dx]];
}

/** The name of a large cell: a letter from the west and a number from the north. */
export const cellName = (x: number, y: number): string => `${x < 26 ? String.fromCharCode(65 + x) : `${String.fromCharCode(64 + Math.floor(x / 26))}${String.fromCharCode(65 + (x % 26))}`}${y + 1}`;

class FlowMap {
  private way: number;
  private row: number; // of the chosen cell in the map's layer; -1 for none
  private top: number;
  private marked: Cell[] = []; // by the list or the matrix
  private readonly noun: string;
  private rows: number[] = [];
  private readonly list = h("ol", { class: "places" });
  private readonly note = h("p", { class: "note", "aria-live": "polite" });
  private readonly control = h("div");
  private readonly slider: HTMLInputElement;
  readonly panel: HTMLElement;

  constructor(private readonly figure: MapFigure, private readonly body: FlowsBody, private readonly tools: Tools, view: PageView) {
    const { link } = tools;
    const cells = body.map.layers[0].level.length;
    this.noun = body.map.layers[0].noun;
    this.way = link.index("way", 3, 0);
    this.row = link.index("cell", cells, -1);
    this.top = link.index("arcs", STEPS.length, STEPS.indexOf(ARCS));
    this.slider = h("input", { type: "range", min: 0, max: STEPS.length - 1, step: 1, value: this.top, "aria-label": "Number of arcs" });
    this.slider.addEventListener("input", () => {
      this.top = Number(this.slider.value);
      link.set("arcs", STEPS[this.top] === ARCS ? null : this.top);
      this.show();
    });
    this.panel = h("aside", { class: "panel", "aria-label": "Controls" }, this.control,
      h("section", {}, h("h2", {}, "The largest flows"), this.note, h("div", { class: "slide" }, h("span", {}, "few arcs"), this.slider, h("span", {}, "many")), this.list, h("p", { class: "note" }, body.reading)),
      h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report"))));
    figure.setOverlay((pen, scene) => this.paint(pen, scene));
    figure.onClick(({ row }) => {
      if (row >= 0) this.choose(this.way || 1, row);
    });
    figure.setTip(({ row }) => {
      if (row < 0) return null;
      const layer = body.map.layers[0];
      const facts = layer.measures.map(({ name, value, low, high }): [string, string] => {
        const [trips, from, to] = notNegative(value[row] ?? 0, low[row] ?? 0, high[row] ?? 0);
        return [name, `about ${within(trips, from, to)} (${interval(from, to)})`];
      });
      return { value: capital(this.name(cellOf(body.map, row))), margin: `Click or press Enter for flows ${this.way === 2 ? "to" : "from"} this ${this.noun}`, facts: [...facts, ["Intervals", "sums of the ends of the flows' 95% intervals"], [capital(this.noun), layer.cell_id[row]]] };
    });
    link.onChange(() => this.choose(link.index("way", 3, 0), link.index("cell", cells, -1)));
    this.choose(this.way, this.row);
  }

  /** Shows the flows of a way and of a cell; -1 for none. */
  private choose(way: number, row: number): void {
    [this.way, this.row] = [way, way ? row : -1];
    this.tools.link.set("way", way || null);
    this.tools.link.set("cell", this.row < 0 ? null : this.row);
    const focused = this.control.contains(document.activeElement);
    this.control.replaceChildren(choice("Show", ["All flows", `From a ${this.noun}`, `To a ${this.noun}`], way, (chosen) => this.choose(chosen, this.row)));
    if (focused) (this.control.querySelector("input:checked") as HTMLElement | null)?.focus();
    const layer = this.body.map.layers[0];
    this.figure.setLayer(layer, layer.measures[way === 1 ? 1 : 0], `Arrows run from their origin (blue) to their destination (red); wider ones carry more trips. A ring marks trips within a ${this.noun}.`); // from a cell: where its trips may end
    this.show();
  }

  private show(): void {
    const cell = this.row < 0 ? null : cellOf(this.body.map, this.row);
    this.rows = flowsOf(this.body.flows, this.way, cell);
    const { flows } = this.body;
    const arcs = Math.min(STEPS[this.top], this.rows.length);
    const all = !this.way || !cell;
    const what = all ? `${plural(this.body.listed, "flow")} in all` : `${plural(this.rows.length, "flow")} ${this.way === 1 ? "from" : "to"} the selected ${this.noun}`;
    this.note.textContent = `${capital(what)}; ${plural(arcs, "arc")} shown.${this.way && !cell ? ` Click a ${this.noun} on the map, or move the map to it and press Enter.` : ""}`;
    this.slider.setAttribute("aria-valuetext", plural(STEPS[this.top], "arc"));
    this.list.replaceChildren(...this.rows.slice(0, LISTED).map((row) => {
      const ends = this.ends(row);
      const [from, to] = ends.map((cell) => this.name(cell));
      const isWithin = flows.origin_x[row] === flows.destination_x[row] && flows.origin_y[row] === flows.destination_y[row];
      const [value, margin] = tripWords(flows.trips[row], flows.low[row], flows.high[row]);
      const item = button("", () => this.mark(ends), { title: `Show on the map: ${margin}` });
      item.append(h("span", {}, ...(isWithin ? [`within ${from}`] : [h("i", { class: "from" }, from), " → ", h("i", { class: "to" }, to)])), h("b", {}, value), h("span", { class: "quiet wide-line" }, margin));
      return h("li", {}, item);
    }));
    this.figure.setLabel(`Map of flows. ${this.note.textContent}`);
    this.marked = [];
    this.figure.redraw();
  }

  /** The id of a zone; the named place at the middle of a cell, or its coordinates. */
  name(cell: Cell): string {
    if (this.body.flows.centres) return this.body.map.layers[0].cell_id[cell.x];
    const [x, y] = middleOf(this.body, cell);
    return this.figure.nearest(x, y) ?? place(x, y, Math.min(...this.body.map.finest_metres));
  }

  /** Marks cells on the map. */
  mark(cells: Cell[]): void {
    this.marked = cells;
    this.figure.redraw();
  }

  private ends(row: number): [Cell, Cell] {
    const { flows } = this.body;
    const level = flows.level[row];
    return [{ level, x: flows.origin_x[row], y: flows.origin_y[row] }, { level, x: flows.destination_x[row], y: flows.destination_y[row] }];
  }

  private paint(pen: CanvasRenderingContext2D, { project, mode }: Scene): void {
    const middle = (cell: Cell): [number, number] => project(...middleOf(this.body, cell));
    const { trips } = this.body.flows;
    const shown = this.rows.slice(0, STEPS[this.top]);
    const most = Math.max(...shown.map((row) => trips[row]), 1);
    const [origin, destination] = mode === "dark" ? ["#6cc6ff", "#ff86ad"] : ["#0b63ad", "#b0103f"];
    pen.lineCap = "butt";
    for (const row of [...shown].reverse()) {
      const [from, to] = this.ends(row);
      const [[x1, y1], [x2, y2]] = [middle(from), middle(to)];
      pen.lineWidth = 0.8 + 4.5 * (trips[row] / most);
      pen.beginPath();
      if (x1 === x2 && y1 === y2) {
        pen.strokeStyle = destination;
        pen.arc(x1, y1, 5, 0, 2 * Math.PI);
        pen.lineWidth = Math.min(pen.lineWidth, 3);
      } else {
        const ramp = pen.createLinearGradient(x1, y1, x2, y2);
        ramp.addColorStop(0.2, origin);
        ramp.addColorStop(0.8, destination);
        pen.strokeStyle = ramp;
        const bend: Point = [(x1 + x2) / 2 + 2 * BEND * (y2 - y1), (y1 + y2) / 2 - 2 * BEND * (x2 - x1)];
        const head = headOf(bend, [x2, y2], pen.lineWidth);
        pen.moveTo(x1, y1);
        pen.quadraticCurveTo(...bend, (head[1][0] + head[2][0]) / 2, (head[1][1] + head[2][1]) / 2);
        pen.stroke();
        pen.beginPath();
        for (const point of head) pen.lineTo(...point);
        pen.fillStyle = destination;
        pen.fill();
        continue;
      }
      pen.stroke();
    }
    const { map } = this.body;
    const chosen = this.row < 0 ? [] : [cellOf(map, this.row)];
    for (const cell of [...chosen, ...this.marked]) {
      pen.beginPath();
      for (const ring of outlineOf(map, cell)) {
        ring.forEach(([x, y], i) => pen[i ? "lineTo" : "moveTo"](...project(x, y)));
        pen.closePath();
      }
      for (const [width, colour] of [[4, mode === "dark" ? "#000" : "#fff"], [2, mode === "dark" ? "#fff" : "#111"]] as const) {
        pen.lineWidth = width;
        pen.strokeStyle = colour;
        pen.stroke();
      }
    }
  }

  table(): string {
    const { flows, map } = this.body;
    const names = map.layers[0].cell_id;
    const counts = (row: number): number[] => [flows.trips[row], flows.low[row], flows.high[row]];
    if (flows.centres) return csv(["from", "to", "trips", "low", "high"], this.rows.map((row) => [names[flows.origin_x[row]], names[flows.destination_x[row]], ...counts(row)]));
    const sides = ({ level, x, y }: Cell): number[] => {
      const { west, south, east, north } = cellBounds(map.region, level, x, y);
      return [west, south, east, north];
    };
    const heads = ["from", "to", "from_west", "from_south", "from_east", "from_north", "to_west", "to_south", "to_east", "to_north", "trips", "low", "high"];
    return csv(heads, this.rows.map((row) => [...this.ends(row).map((cell) => this.name(cell)), ...this.ends(row).flatMap(sides), ...counts(row)]));
  }
}

/** The matrix of large cells: one row an origin, one column a destination. Its words stand above, for every way to point. */
function matrixOf(matrix: FlowMatrix, map: FlowMap): HTMLElement {
  const names = matrix.x.map((x, i) => cellName(x, matrix.y[i]));
  const most = Math.max(...matrix.trips.flat(), 1);
  const hint = "Rows are origins, columns are destinations. Point at a field, or use the arrow keys, to read its trips. Cells have letters from west to east and numbers from north to south; the map shows the cell.";
  const words = h("p", { class: "quiet", "aria-live": "polite" }, hint);
  const cells = matrix.x.map((x, i) => ({ level: matrix.level, x, y: matrix.y[i] }));
  const fields: HTMLElement[] = [];
  const rows = names.map((from, i) => h("tr", {}, h("th", { scope: "row" }, from, h("small", {}, map.name(cells[i]))), names.map((to, j) => {
    const [trips, low, high] = [matrix.trips[i][j], matrix.low[i][j], matrix.high[i][j]];
    const [value, margin] = low > 0 ? tripWords(trips, low, high) : [`at most about ${atMost(trips, high)} trips`, "may have none: indistinguishable from zero"];
    const text = `${from} to ${to}: ${value} (${margin}). From ${map.name(cells[i])} to ${map.name(cells[j])}.`;
    const share = low > 0 ? Math.cbrt(Math.max(trips, 0) / most) : 0;
    const field = h("td", { title: text, tabindex: fields.length ? -1 : 0, "aria-label": text });
    fields.push(field);
    field.style.setProperty("--share", `${Math.round(100 * share)}%`);
    for (const name of ["pointerenter", "focus"]) field.addEventListener(name, () => {
      words.textContent = text;
      map.mark([cells[i], cells[j]]);
    });
    return field;
  })));
  const table = h("table", { class: "matrix", role: "grid", "aria-label": "Trips between all pairs of large cells" }, h("thead", {}, h("tr", {}, h("th", {}, "from \\ to"), names.map((name, j) => h("th", { scope: "col", title: map.name(cells[j]) }, name)))), h("tbody", {}, rows));
  table.addEventListener("keydown", (event) => { // the arrow keys move within the matrix, the Tab key past it
    const at = fields.indexOf(event.target as HTMLElement);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: names.length, ArrowUp: -names.length }[event.key];
    const next = step === undefined || at < 0 || (Math.abs(step) === 1 && Math.floor((at + step) / names.length) !== Math.floor(at / names.length)) ? undefined : fields[at + step];
    if (step === undefined || at < 0) return;
    event.preventDefault();
    if (!next) return;
    fields[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  table.addEventListener("pointerleave", () => map.mark([]));
  return h("section", { class: "matrix-part" }, h("h2", {}, "Origins and destinations"), words, h("div", { class: "wide" }, table),
    h("p", { class: "key" }, `Stronger colour means more trips; the strongest is about ${significant(most, 2)}. No colour: indistinguishable from zero.`));
}

/** The first screen of flows. */
export const showFlows: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  const body = view.body as FlowsBody;
  const figure = new MapFigure(root, body.map.region, { label: view.title, finestMetres: body.map.finest_metres, missing: body.map.missing, opacity: CELLS }, tools);
  geographyOf(view, tools)(figure);
  const map = new FlowMap(figure, body, tools, view);
  root.append(map.panel);
  if (body.matrix) root.append(matrixOf(body.matrix, map));
  tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await figure.toPNG(captionOf(view))));
  tools.addButton("Table", () => offer(`${view.file_name}.csv`, map.table()));
};
