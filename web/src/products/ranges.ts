// Range queries: a square drawn on the map, put there by a click or a key, or typed in; and how many users it holds.
import { button, choice, h } from "../dom";
import { csv, offer } from "../download";
import { atMost, capital, clamp, interval, known, metres, percent, place } from "../format";
import { geographyOf } from "../map/basemap";
import { MapFigure, type Hit } from "../map/figure";
import type { Box, Scene } from "../map/ground";
import { captionOf, type Product, type Tools } from "../product";
import { RangeModel, type Answer, type Model, type Square } from "../ranges/model";
import { networkAnswers } from "../ranges/network";
import type { PageView, RangesBody } from "../views";

const Z = 1.96;
const [SMALLEST, LARGEST] = [0.001, 40_030_000]; // metres
const DRAWN = 4; // pixels: a shorter drag is a click
const FIELDS = [
  ["x", "Longitude of the centre", "Longitude must be between \u2212180 and 180 degrees.", -180, 180],
  ["y", "Latitude", "Latitude must be between \u221290 and 90 degrees.", -90, 90],
  ["size", "Side, metres", "Side must be a number of metres above 0.", SMALLEST, LARGEST],
] as const;

/** An answer as [value, margin, note]. `lower`: whether the stated error is a lower bound. */
export function answerWords({ users, stddev, inside }: Answer, lower: boolean): [string, string, string] {
  if (inside === 0) return ["0 users", "", "This square lies outside the region; nothing was counted there."];
  const [low, high] = [Math.max(users - Z * stddev, 0), users + Z * stddev];
  const note = inside < 1 ? `${percent(clamp(inside, 0.001, 0.999))} of this square lies in the region; the answer covers only that part.` : "";
  const wide = lower ? "; the true interval may be wider" : "";
  if (low <= 0) return [`at most about ${atMost(users, high)} users`, `may be empty: indistinguishable from zero${wide}`, note];
  return [`about ${known(users, stddev)} users`, `${interval(low, high)}, 95% interval${wide}`, note];
}

export const roundedSquare = (x: number, y: number, size: number): Square => ({
  x: clamp(Number(x.toFixed(6)), -180, 180), y: clamp(Number(y.toFixed(6)), -90, 90), size: clamp(Number(size.toPrecision(3)), SMALLEST, LARGEST),
});
/** The square that a link names, as longitude/latitude/metres; null where it names none. */
export function squareOf(text: string | null): Square | null {
  const parts = (text ?? "").split("/").map(Number);
  const fits = parts.length === 3 && FIELDS.every(([, , , low, high], i) => parts[i] >= low && parts[i] <= high);
  return fits ? roundedSquare(parts[0], parts[1], parts[2]) : null;
}

/** The square on the map and the panel with its answer. */
class SquareTool {
  private square: Square;
  private drawing: { pointer: number; from: [number, number]; centre: Hit; before: Square; moved: boolean } | null = null;
  private ignoresClick = false;
  private draws = true;
  private readonly users = h("p", { class: "users" });
  private readonly margin = h("p", { class: "margin" });
  private readonly note = h("p", { class: "note" });
  private readonly wrong = h("p", { class: "wrong", role: "alert" });
  private readonly inputs = FIELDS.map(([name]) => h("input", { name, type: "number", step: "any", inputmode: "decimal", autocomplete: "off" }));
  private readonly lower: boolean;

  constructor(private readonly model: RangeModel, private readonly figure: MapFigure, private readonly body: RangesBody, private readonly tools: Tools) {
    this.lower = model.model.error === "lower bound";
    const [x, y, size] = body.start;
    const start = { x, y, size };
    this.square = squareOf(tools.link.get("square")) ?? start;
    tools.link.onChange(() => this.setSquare(squareOf(tools.link.get("square")) ?? start));
    figure.setOverlay((pen, scene, letters) => this.paint(pen, scene).forEach((box) => letters.take(box)));
    figure.setTip((hit) => this.tip(hit));
    figure.onClick((hit) => {
      if (!this.ignoresClick) this.move(hit.longitude, hit.latitude);
      this.ignoresClick = false;
    });
    this.listen();
    this.inputs.forEach((input) => input.addEventListener("input", () => this.readInputs()));
    this.setSquare(this.square);
  }

  get answered(): [Square, Answer] {
    return [this.square, this.model.answer(this.square)];
  }

  panel(): HTMLElement {
    const labels = FIELDS.map(([, text], i) => h("label", {}, h("span", {}, text), this.inputs[i]));
    const form = h("form", { class: "square" }, labels, this.wrong);
    form.addEventListener("submit", (event) => event.preventDefault());
    const [low, high] = this.body.sizes_metres;
    return h("aside", { class: "panel", "aria-label": "The square" },
      h("section", { class: "asked" }, h("h2", {}, "In this square"), this.users, this.margin, this.note),
      form,
      h("div", { class: "steps", role: "group", "aria-label": "Size of the square" },
        button("Smaller", () => this.scale(1 / 1.25)), button("Larger", () => this.scale(1.25)),
        button("Show the square", () => this.showSquare())),
      h("section", {}, choice("Drag with the mouse to", ["draw a square", "move the map"], 0, (chosen) => (this.draws = chosen === 0)),
        h("p", { class: "quiet" }, `Drag outwards from the centre; hold Shift to switch between drawing and moving. Click or tap to place a square of the same size, press Enter to place it at the map's centre, and [ or ] to resize it. Made for sides of ${metres(low)} to ${metres(high)}.`)));
  }

  private setSquare(square: Square, typed = false): void {
    this.square = square;
    const answer = this.model.answer(square);
    const [value, margin, note] = answerWords(answer, this.lower);
    this.users.textContent = value;
    this.margin.textContent = margin;
    const [low, high] = this.body.sizes_metres;
    const size = square.size < low * 0.999 || square.size > high * 1.001 ? `The model was made for sides of ${metres(low)} to ${metres(high)}; this answer may be less accurate.` : "";
    this.note.textContent = [note, size].filter(Boolean).join(" ");
    this.note.hidden = !this.note.textContent;
    this.wrong.hidden = true;
    this.inputs.forEach((input, i) => {
      if (!typed) input.value = String(square[FIELDS[i][0]]);
      input.removeAttribute("aria-invalid");
    });
    const [x, y, own] = this.body.start;
    this.tools.link.set("square", square.x === x && square.y === y && square.size === own ? null : `${square.x}/${square.y}/${square.size}`);
    this.figure.redraw();
  }

  private speak(): void {
    this.tools.say(answerWords(this.model.answer(this.square), this.lower).filter(Boolean).join(". "));
  }

  private move(longitude: number, latitude: number): void {
    this.setSquare(roundedSquare(longitude, latitude, this.square.size));
    this.speak();
  }

  private scale(factor: number): void {
    this.setSquare(roundedSquare(this.square.x, this.square.y, this.square.size * factor));
    this.speak();
  }

  private showSquare(): void {
    const { west, south, east, north } = this.model.boundsOf(this.square);
    this.figure.map.fitBounds([[south, west], [north, east]], { padding: [80, 80], animate: false });
  }

  private readInputs(): void {
    const values = this.inputs.map((input) => (input.value.trim() === "" ? NaN : Number(input.value)));
    const bad = FIELDS.findIndex(([, , , low, high], i) => !(values[i] >= low && values[i] <= high));
    if (bad < 0) {
      this.setSquare({ x: values[0], y: values[1], size: values[2] }, true);
      this.speak();
      return;
    }
    this.inputs.forEach((input, i) => input.setAttribute("aria-invalid", String(i === bad)));
    this.wrong.textContent = `${FIELDS[bad][2]} The answer above is for the last valid square.`;
    this.wrong.hidden = false;
  }

  /** The answer that a square round the pointer would have. */
  private tip({ longitude, latitude }: Hit): { value: string; margin: string; facts: [string, string][] } | null {
    const { west, south, east, north } = this.body.region;
    const outside = longitude < west || longitude > east || latitude < south || latitude > north;
    if (this.drawing || outside) return null;
    const [value, margin] = answerWords(this.model.answer({ x: longitude, y: latitude, size: this.square.size }), this.lower);
    const near = this.figure.nearest(longitude, latitude);
    const facts: [string, string][] = [["Square", `${metres(this.square.size)} wide, centred here`], ["Position", place(longitude, latitude, 10)]];
    return { value, margin, facts: near === null ? facts : [["Where", near], ...facts] };
  }

  // ---------------------------------------------------------------- drawing

  private listen(): void {
    const { element, map } = this.figure;
    const holder = map.getContainer();
    const hitAt = (event: MouseEvent): Hit => {
      const { lat, lng } = map.mouseEventToLatLng(event);
      return { row: -1, longitude: lng, latitude: lat };
    };
    // These listeners stand above the map's own, which then do not hear of the event.
    element.addEventListener("pointerdown", (event) => {
      this.ignoresClick = false;
      if (event.pointerType === "touch" || event.button || !holder.contains(event.target as Node) || this.draws === event.shiftKey) return;
      event.stopPropagation();
      holder.setPointerCapture(event.pointerId);
      this.drawing = { pointer: event.pointerId, from: [event.clientX, event.clientY], centre: hitAt(event), before: this.square, moved: false };
    }, true);
    element.addEventListener("mousedown", (event) => {
      if (this.drawing) event.stopPropagation();
    }, true);
    element.addEventListener("pointermove", (event) => {
      const { drawing } = this;
      if (drawing?.pointer !== event.pointerId) return;
      event.stopPropagation();
      const { clientX, clientY } = event;
      if (!drawing.moved && Math.max(Math.abs(clientX - drawing.from[0]), Math.abs(clientY - drawing.from[1])) < DRAWN) return;
      drawing.moved = true;
      const { longitude, latitude } = drawing.centre;
      const here = hitAt(event);
      const { west, south, east, north } = this.body.region;
      const [wide, tall] = this.model.model.metres;
      const half = Math.max((Math.abs(here.longitude - longitude) / (east - west)) * wide, (Math.abs(here.latitude - latitude) / (north - south)) * tall);
      this.setSquare(roundedSquare(longitude, latitude, 2 * half));
    }, true);
    for (const type of ["pointerup", "pointercancel"] as const) element.addEventListener(type, (event) => {
      if (this.drawing?.pointer !== event.pointerId) return;
      if (type === "pointercancel") this.setSquare(this.drawing.before);
      else if (this.drawing.moved) this.speak();
      this.ignoresClick = this.drawing.moved;
      this.drawing = null;
      this.figure.redraw();
    }, true);
    holder.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { lat, lng } = map.getCenter();
      if (event.key === "Enter") this.move(lng, lat);
      else if (event.key === "[") this.scale(1 / 1.25);
      else if (event.key === "]") this.scale(1.25);
    });
  }

  private paint(pen: CanvasRenderingContext2D, scene: Scene): Box[] {
    const { west, south, east, north } = this.model.boundsOf(this.square);
    const [x0, y0] = scene.project(west, north);
    const [x1, y1] = scene.project(east, south);
    const [ink, paper] = [this.tools.theme.colour("--ink"), this.tools.theme.colour("--sheet")];
    const inside = this.model.answer(this.square).inside;
    pen.setLineDash(inside < 1 ? [5, 4] : []);
    for (const [width, colour] of [[5, paper], [2, ink]] as const) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
    }
    pen.setLineDash([]);
    if (x1 < 0 || y1 < 0 || x0 > scene.width || y0 > scene.height) return [];
    const text = answerWords(this.model.answer(this.square), this.lower)[0];
    pen.font = `600 14px ${this.tools.theme.colour("--sans") || "sans-serif"}`;
    const wide = pen.measureText(text).width + 18;
    const x = clamp((x0 + x1) / 2 - wide / 2, 6, Math.max(scene.width - wide - 6, 6));
    const y = y0 > 40 ? y0 - 34 : y1 < scene.height - 40 ? y1 + 8 : 44;
    pen.fillStyle = paper;
    pen.beginPath();
    pen.roundRect(x, y, wide, 26, 7);
    pen.fill();
    pen.fillStyle = ink;
    pen.fillText(text, x + 9, y + 18);
    return [[x, y, x + wide, y + 26], ...(x1 - x0 < 80 ? [[x0, y0, x1, y1] as Box] : [])];
  }
}

export const showRanges: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  const body = view.body as RangesBody;
  const model = new RangeModel(body.model as unknown as Model, body.region, networkAnswers);
  const { background } = body;
  const layer = background.layers[0];
  const figure = new MapFigure(root, body.region, { label: "Map of estimated users; the square is outlined", finestMetres: background.finest_metres }, tools);
  geographyOf(view, tools)(figure);
  figure.setLayer(layer, layer.measures[0]);
  const tool = new SquareTool(model, figure, body, tools);
  const panel = tool.panel();
  panel.append(h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report"))));
  root.append(panel);
  tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await figure.toPNG({ ...captionOf(view), title: capital(`${answerWords(tool.answered[1], false)[0]} in this square`) })));
  tools.addButton("Table", () => {
    const [square, answer] = tool.answered;
    offer(`${view.file_name}-square.csv`, csv(["x", "y", "size", "users", "stddev", "inside"], [[square.x, square.y, square.size, answer.users, answer.stddev, answer.inside]]));
  });
};
