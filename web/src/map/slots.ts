// Maps of every slot of time: a slider over the slots, a button that plays them, and the curve of a place over the slots.
import { ChartFigure, type Mark } from "../chart/figure";
import { button, h } from "../dom";
import { atMost, capital, interval, within } from "../format";
import type { Tools } from "../product";
import type { Bounds, TimeSlots } from "../views";
import { Cells } from "./cells";
import type { Hit, MapFigure } from "./figure";

const STEP_MS = 900; // of a slot while all are played
const DENSE = 48; // more slots have a band instead of lines
type Estimate = [value: number, low: number, high: number];

/** Users in a slot in words: [value, margin]. */
export function slotWords([value, low, high]: Estimate, unit = "users"): [string, string] {
  const margin = `${interval(low, high)}, 95% interval for this slot only (pointwise)`;
  if (low <= 0) return [`at most about ${atMost(value, high)} ${unit}`, "may be empty: indistinguishable from zero"];
  return [`about ${within(value, low, high)} ${unit}`, margin];
}

/** The users of a place in each slot, or of the whole region for row -1. */
export function profileOf(slots: TimeSlots, row: number): Estimate[] {
  if (row < 0) return slots.region as Estimate[];
  return slots.layer.measures.map(({ value, low, high }): Estimate => [value[row] ?? 0, low[row] ?? 0, high[row] ?? 0]);
}

export class SlotPanel {
  readonly element: HTMLElement;
  /** The slot that the map shows; -1 for all slots together. */
  slot = -1;
  private readonly slider: HTMLInputElement;
  private readonly shown = h("output", { class: "slot-name" });
  private readonly play: HTMLButtonElement;
  private readonly all: HTMLButtonElement;
  private readonly heading = h("h3");
  private readonly chart: ChartFigure;
  private readonly cells: Cells;
  private readonly peak: number;
  private readonly unit: string;
  private timer = 0;
  private chosen = -1; // the row of the place that a click chose
  private row = -2; // of the place that the curve shows; -1 for the region

  /** `show` redraws the map of the slot. */
  constructor(private readonly slots: TimeSlots, region: Bounds, figure: MapFigure, private readonly tools: Tools, private readonly show: () => void) {
    const last = slots.names.length - 1;
    [{ unit: this.unit }] = slots.layer.measures;
    const users = slots.region.map(([value]) => value);
    this.peak = users.indexOf(Math.max(...users));
    this.cells = new Cells(slots.layer, region);
    this.slider = h("input", { type: "range", min: -1, max: last, step: 1, "aria-label": "Time slot" });
    this.play = button("Play", () => (this.timer ? this.stop() : this.start()), { "aria-pressed": "false" });
    this.all = button("All", () => {
      this.stop();
      this.choose(-1);
    }, { "aria-label": "All slots together" });
    const board = h("div");
    this.chart = new ChartFigure(board, { title: slots.title, description: "", x: this.axis(), y: { label: capital(this.unit), domain: [0, 1] }, marks: [], height: () => 190 }, tools);
    this.chart.setTip(slots.names.map((_, i) => i + 0.5), (place) => {
      const [value, low, high] = profileOf(slots, this.row)[place];
      const [words, margin] = slotWords([value, low, high], this.unit);
      return { x: place + 0.5, y: value, value: `${slots.names[place]}: ${words}`, margin };
    });
    this.chart.onChoose((place) => this.choose(place));
    const lines = slots.names.length > DENSE ? "The band shows" : "Lines show";
    this.element = h("section", { class: "slots" }, h("h2", {}, slots.title), h("div", { class: "slide" }, this.slider), h("div", { class: "slide" }, this.play, this.shown, this.all),
      this.heading, board, h("p", { class: "note" }, `${lines} 95% intervals for each slot separately (pointwise). Click a bar to see its map; click the map to keep a place selected.`), h("p", { class: "note" }, slots.note));
    this.slider.addEventListener("input", () => {
      this.stop();
      this.choose(Number(this.slider.value));
    });
    figure.onHover((hit) => this.point(hit ? this.rowAt(hit) : this.chosen));
    figure.onClick((hit) => {
      const row = this.rowAt(hit);
      this.chosen = row === this.chosen ? -1 : row; // a second click lets the place go
      this.row = row;
      this.draw();
    });
    tools.link.onChange(() => this.choose(this.linked()));
    this.choose(this.linked());
    this.point(-1);
  }

  private axis(): { label: string; domain: [number, number]; ticks: number[]; format: (value: number) => string } {
    const texts = new Map(this.slots.ticks as [number, string][]);
    return { label: "", domain: [0, this.slots.names.length], ticks: [...texts.keys()], format: (value) => texts.get(value) ?? "" };
  }

  /** The slot of the link, -1 for all; without one, the slot with the most users. */
  private linked(): number {
    return this.tools.link.get("slot") === "all" ? -1 : this.tools.link.index("slot", this.slots.names.length, this.peak);
  }

  private rowAt({ longitude, latitude }: Hit): number {
    return this.cells.at(longitude, latitude);
  }

  /** Shows a slot on the map, and marks it in the curve. */
  private choose(slot: number): void {
    this.slot = slot;
    const name = slot < 0 ? "All slots together" : this.slots.names[slot];
    this.slider.value = String(slot);
    this.slider.setAttribute("aria-valuetext", name);
    this.shown.textContent = name;
    this.all.disabled = slot < 0;
    this.tools.link.set("slot", slot === this.peak ? null : slot < 0 ? "all" : slot);
    this.draw();
    this.show();
  }

  private start(): void {
    const next = (): void => this.choose(this.slot + 1 < this.slots.names.length ? this.slot + 1 : 0);
    this.timer = window.setInterval(next, STEP_MS);
    this.play.textContent = "Stop";
    this.play.setAttribute("aria-pressed", "true");
    next();
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  }

  /** Draws the curve of a place, -1 for the region. */
  private point(row: number): void {
    if (row === this.row) return;
    this.row = row;
    this.draw();
  }

  private draw(): void {
    if (this.row < -1) return;
    const profile = profileOf(this.slots, this.row);
    const name = this.row < 0 ? "The whole region" : "The place under the pointer";
    this.heading.textContent = this.row >= 0 && this.row === this.chosen ? "The selected place" : name;
    const marks: Mark[] = [
      { kind: "bars", bars: profile.map(([value], i) => [i + 0.08, i + 0.92, value, i === this.slot ? "s0" : "s5"]) },
      { kind: "upright", points: profile.length > DENSE ? [] : profile.map(([, low, high], i) => [i + 0.5, low, high]) },
      ...(profile.length > DENSE ? [{ kind: "band", points: profile.map(([, low, high], i) => [i + 0.5, low, high]) } as Mark] : []),
    ];
    this.chart.draw({
      title: `${this.slots.title}: ${this.heading.textContent.toLowerCase()}`,
      description: profile.map((one, i) => `${this.slots.names[i]}: ${slotWords(one, this.unit)[0]}`).join(". "),
      y: { label: capital(this.unit), domain: [0, Math.max(...profile.map(([, , high]) => high), 1)] },
      marks,
    });
  }
}
