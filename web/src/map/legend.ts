// The key under the map: a ramp with numbers that never overlap, the hatching, and the scale of lengths.
import { h } from "../dom";
import type { Theme } from "../theme";
import type { Measure } from "../views";
import { hatch } from "./cells";
import { coloursOf, faded, shaded, shadeOf } from "./colours";

const HATCHED = { rate: "the interval covers more than half of the scale", value: "the interval covers more than half of the scale", change: "within noise and sampling error" };
const RAMP = 280; // pixels of the ramp's canvas, stretched to its place

export class Legend {
  private readonly title = h("p", { class: "legend-title" });
  private readonly ramp = h("canvas", { width: RAMP, height: 1, "aria-hidden": "true" });
  private readonly ticks = h("div", { class: "ticks" });
  private readonly keys = h("ul", { class: "keys" });
  private readonly scaleText = h("span");
  private readonly scaleLine = h("i");
  private measure: Measure | null = null;
  readonly element = h("div", { class: "legend", role: "group", "aria-label": "Legend" }, this.title,
    h("div", { class: "ramp" }, this.ramp, this.ticks), this.keys, h("div", { class: "scale" }, this.scaleText, this.scaleLine));

  /** `opacity`: of the cells on the map, so that the ramp has their colours. */
  constructor(private readonly theme: Theme, private readonly opacity = 1) {
    this.ramp.style.opacity = String(opacity);
    theme.onChange(() => this.paint());
    new ResizeObserver(() => this.thin()).observe(this.ticks);
  }

  /** Letters the key for a measure. `without`: which cells have no colour. `missing`: what a place without a cell means. `outlined`: whether cells without a colour have an outline. */
  show(measure: Measure, without: boolean[], missing: string | null, note: string, outlined: boolean): void {
    this.measure = measure;
    const [noun, ...slot] = measure.name.split(", ");
    this.title.replaceChildren(measure.kind === "count" && measure.scale.unit !== measure.unit ? [`${noun} per km²`, ...slot].join(", ") : [measure.name, measure.kind === "count" ? "" : measure.unit].filter(Boolean).join(", "));
    this.ticks.replaceChildren(...measure.scale.ticks.map(([value, text]) => {
      const tick = h("span", {}, text);
      tick.style.left = `${100 * shadeOf(value, measure.scale)}%`;
      return tick;
    }));
    const none = [
      ...(missing === null ? [] : [`${missing.charAt(0).toLowerCase()}${missing.slice(1).replace(":", ",").replace(/\.$/, "")}`]),
      ...(without.some((one, i) => one && measure.value[i] !== null && !(measure.kind === "count" && measure.smooth)) ? [measure.unit === "trips" ? "may have none" : outlined ? "may be empty (outlined)" : "may be empty"] : []),
      ...(measure.value.includes(null) ? ["unknown"] : []),
    ];
    const key = (name: string, text: string): HTMLElement => h("li", {}, h("canvas", { class: "swatch", width: 24, height: 12, "data-key": name, "aria-hidden": "true" }), text);
    this.keys.replaceChildren(...[
      measure.kind !== "count" && measure.uncertain.some((one, i) => one && !without[i]) && key("uncertain", HATCHED[measure.kind]),
      none.length > 0 && h("li", {}, `No colour: ${none.join(", or ")}`),
      note !== "" && h("li", { class: "note" }, note),
    ].filter((one) => one !== false));
    this.paint();
    this.thin();
  }

  showScale({ text, pixels }: { text: string; pixels: number }): void {
    this.scaleText.textContent = text;
    this.scaleLine.style.width = `${pixels}px`;
  }

  /** Takes away the numbers that would run into others; the first and the last stay. */
  private thin(): void {
    const ticks = [...this.ticks.children] as HTMLElement[];
    const room = this.ticks.clientWidth;
    const centres = ticks.map((tick) => (parseFloat(tick.style.left) / 100) * room);
    ticks.forEach((tick) => (tick.hidden = false));
    const widths = ticks.map((tick) => tick.offsetWidth);
    const starts = centres.map((centre, i) => Math.min(Math.max(centre - widths[i] / 2, 0), Math.max(room - widths[i], 0)));
    const last = ticks.length - 1;
    let end = -Infinity;
    ticks.forEach((tick, i) => {
      const overlaps = starts[i] < end + 8 || (i < last && starts[i] + widths[i] + 8 > starts[last]);
      tick.hidden = overlaps && i !== last && (i !== 0 || starts[0] + widths[0] + 8 > starts[last]);
      if (!tick.hidden) end = starts[i] + widths[i];
      tick.style.transform = `translateX(${starts[i] - centres[i]}px)`;
    });
  }

  private paint(): void {
    if (!this.measure) return;
    const colours = coloursOf(this.measure.kind, this.theme.mode);
    const pen = this.ramp.getContext("2d");
    pen?.clearRect(0, 0, RAMP, 1);
    const ramp = pen?.createLinearGradient(0, 0, RAMP, 0); // not a rectangle for each colour: a printer leaves gaps between them
    for (const shade of colours.keys()) ramp?.addColorStop(shade / (colours.length - 1), shaded(colours, shade, this.measure.kind));
    if (pen && ramp) {
      pen.fillStyle = ramp;
      pen.fillRect(0, 0, RAMP, 1);
    }
    for (const swatch of this.keys.querySelectorAll("canvas")) {
      const brush = swatch.getContext("2d");
      if (!brush) continue;
      const hatched = swatch.dataset.key === "uncertain" && brush.createPattern(hatch(faded(colours[90], this.theme.mode), this.theme.mode, 1), "repeat");
      brush.fillStyle = hatched || this.theme.colour("--void");
      brush.fillRect(0, 0, 24, 12);
    }
  }

  /** Draws the key for a picture, `width` pixels wide and 80 high. */
  draw(pen: CanvasRenderingContext2D, width: number, scale: { text: string; pixels: number }): void {
    const [ink, soft] = [this.theme.colour("--ink"), this.theme.colour("--soft")];
    const wide = Math.min(width - 150, 360);
    pen.font = `12px ${this.theme.colour("--sans")}`;
    pen.fillStyle = ink;
    pen.fillText(this.title.textContent, 14, 20);
    pen.globalAlpha = this.opacity;
    pen.drawImage(this.ramp, 0, 0, RAMP, 1, 14, 28, wide, 9);
    pen.globalAlpha = 1;
    pen.fillStyle = soft;
    for (const tick of [...this.ticks.children] as HTMLElement[]) {
      if (tick.hidden) continue;
      const at = 14 + (parseFloat(tick.style.left) / 100) * wide;
      const half = pen.measureText(tick.textContent).width / 2;
      pen.fillText(tick.textContent, Math.min(Math.max(at - half, 14), 14 + wide - 2 * half), 52);
    }
    let x = 14;
    for (const item of this.keys.querySelectorAll("li")) {
      const swatch = item.querySelector("canvas");
      if (swatch) pen.drawImage(swatch, x, 60);
      pen.fillText(item.textContent, x + (swatch ? 30 : 0), 70, width - x - 44);
      x += pen.measureText(item.textContent).width + 50;
    }
    pen.textAlign = "right";
    pen.fillText(scale.text, width - 14, 20);
    pen.fillStyle = ink;
    pen.fillRect(width - 14 - scale.pixels, 28, scale.pixels, 2);
    pen.textAlign = "left";
  }
}
