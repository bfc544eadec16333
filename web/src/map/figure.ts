// The map of every page: Leaflet in Web Mercator, with the basemap and the cells on one canvas over its tiles.
import * as L from "leaflet";
import { button, h } from "../dom";
import { clamp, metres, niceStep } from "../format";
import type { Tools } from "../product";
import type { Bounds, Layer, Measure } from "../views";
import { zoomButtons } from "./buttons";
import { Cells, inside, isOverLines, type Window } from "./cells";
import type { Box, Ground, Named, Overlay, Scene } from "./ground";
import { Letters } from "./letters";
import { Legend } from "./legend";
import { letterZones } from "./names";
import { listenToPrinting } from "./paper";
import { type Caption, pictureOf } from "./picture";
import { Search } from "./search";
import { Selection } from "./selection";
import { unitX, unitY, worldMetres } from "./projection";

export interface MapOptions {
  /** What the map shows, for screen readers. */
  readonly label: string;
  /** Width and height of the finest cell in metres: how far one can zoom in, and how exactly places are written. */
  readonly finestMetres: [number, number];
  /** What a place without a cell means; null where cells cover the region. Then no cell is drawn narrower than 4 pixels. */
  readonly missing?: string | null;
  /** Where place and zoom are kept in the link; null keeps them nowhere. */
  readonly linkKey?: string | null;
  /** Where the link keeps the cell that a click, the search or a list selects; without it, nothing stays selected. */
  readonly choiceKey?: string;
  /** Of the cells, where they are the ground of something else; 1 without it. */
  readonly opacity?: number;
  /** What is shown first; the whole region without it. */
  readonly start?: Bounds | null;
}

/** A place on the map: the cell there, as a row of the layer that is shown, or -1. */
export interface Hit {
  readonly row: number;
  readonly longitude: number;
  readonly latitude: number;
}

/** What the tip says of a place: the value, its margin, then terms and texts. */
export interface TipWords {
  readonly value: string;
  readonly margin: string;
  readonly facts: [string, string][];
}

const WORLD = 256; // CSS pixels of the world at Leaflet's zoom 0
const HINT_MS = 1600;
export const SYMBOL = 36; // CSS pixels: a narrower zone is a symbol, such as a stop's circle
const still = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class MapFigure {
  readonly element: HTMLElement;
  /** Leaflet's own map, for a product's gestures. */
  readonly map: L.Map;
  readonly legend: Legend;
  cells: Cells | null = null;
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly sheet = document.createElement("canvas");
  private sheetState = "";
  private dressed = 0; // how often the cells were given colours
  private readonly tip = h("div", { class: "tip", hidden: true });
  private readonly search = new Search((found) => {
    this.visit(found);
    const { id, middle } = found;
    if (id !== undefined && middle) for (const listener of this.clicks) listener(this.hitAt(L.latLng(middle[1], middle[0]))); // as a click on it
  });
  private readonly hint = h("p", { class: "hint", hidden: true, "aria-hidden": "true" });
  private ground: Ground | null = null;
  private overlay: Overlay | null = null;
  private words: ((hit: Hit) => TipWords | null) | null = null;
  private readonly hovers: ((hit: Hit | null) => void)[] = [];
  private readonly clicks: ((hit: Hit) => void)[] = [];
  private readonly keysHelp = h("p", { class: "unseen", id: "map-keys" }, "Arrow keys move the map, plus and minus zoom, zero shows the whole map. The value at the centre is read out as the map moves.");
  private hover: Hit | null = null;
  private readonly selection: Selection;
  private keyboard = false;
  private fitted = true;
  private frame = 0;
  private sharpness = 1; // pixels a CSS pixel, at least
  private isTouched = false; // by a finger, not a mouse
  private hinting = 0;
  private tiles: L.TileLayer | null = null;

  /** Appends the map, its buttons and its legend to `root`. */
  constructor(root: HTMLElement, readonly region: Bounds, private readonly options: MapOptions, private readonly tools: Tools) {
    const holder = h("div", { class: "map-view", tabindex: "0", role: "application", "aria-label": options.label, "aria-describedby": "map-keys" });
    const frame = h("div", { class: "map-frame" }, holder, this.search.element, zoomButtons((levels) => this.zoomBy(levels), () => this.fit()), this.tip, this.hint);
    this.legend = new Legend(tools.theme, options.opacity);
    this.selection = new Selection(tools.link, options.choiceKey, () => this.redraw());
    this.element = h("div", { class: "map" }, frame, this.legend.element, this.keysHelp);
    root.append(this.element);
    this.shape();
    this.guardGestures(frame, holder); // before Leaflet listens
    this.map = L.map(holder, {
      attributionControl: false, zoomControl: false, zoomAnimation: false, fadeAnimation: false, inertia: !still(), doubleClickZoom: false,
      zoomSnap: 0, zoomDelta: 0.75, wheelPxPerZoomLevel: 120, bounceAtZoomLimits: false, tapHold: false, maxBoundsViscosity: 0.6,
    });
    holder.append(this.canvas);
    this.setLimits();
    this.showLinked();
    this.map.on("move zoom viewreset", () => this.paint());
    this.map.on("moveend", () => this.keepPlace());
    this.listen(holder);
    listenToPrinting(frame, this.map, (...shown) => this.show(...shown));
    new ResizeObserver(() => this.resize()).observe(holder);
    new ResizeObserver(() => document.documentElement.style.setProperty("--below", `${this.legend.element.offsetHeight + 30}px`)).observe(this.legend.element);
    tools.theme.onChange(() => this.redress());
    tools.link.onChange(() => this.showLinked());
  }

  // ---------------------------------------------------------------- what is shown

  private shown: { layer: Layer; measure: Measure } | null = null;

  /** Shows a layer coloured by one of its measures, and letters the legend; `note` stands under it. */
  setLayer(layer: Layer, measure: Measure, note = ""): void {
    if (this.cells?.layer !== layer) {
      this.cells = new Cells(layer, this.region);
      this.fitAndOffer();
      this.selection.show(this.cells);
    }
    this.shown = { layer, measure };
    this.legend.show(measure, this.cells.withoutColour(measure), this.options.missing ?? null, note, Boolean(layer.shapes && layer.named));
    this.redress();
  }

  setBasemap(ground: Ground | null): void {
    this.ground = ground;
    this.fitAndOffer();
    this.redraw();
  }

  private fitAndOffer(): void {
    this.shape();
    const { cells } = this;
    const zones = cells?.layer.shapes ? cells.layer.cell_id.map((name, row) => ({ name, id: cells.ids[row], box: cells.bounds(row), middle: cells.middle(row) })) : [];
    const own = new Set(zones.map(({ name }) => name));
    this.search.offer([...(this.ground?.names ?? []).filter(({ name }) => !own.has(name)), ...zones]);
  }

  /** Shows tiles of a server under the cells, which let them through; null takes them away. */
  setTiles(pattern: string | null): void {
    this.tiles?.remove();
    this.tiles = pattern === null ? null : L.tileLayer(pattern, { maxNativeZoom: 19, maxZoom: 30, crossOrigin: "anonymous", referrerPolicy: "no-referrer" }).addTo(this.map);
    this.redraw();
  }

  /** Paints over the cells whenever the map is painted. */
  setOverlay(paint: Overlay | null): void {
    this.overlay = paint;
    this.redraw();
  }

  setTip(words: ((hit: Hit) => TipWords | null) | null): void {
    this.words = words;
  }

  setLabel(text: string): void {
    this.map.getContainer().setAttribute("aria-label", text);
  }

  onHover(listener: (hit: Hit | null) => void): void {
    this.hovers.push(listener);
  }

  /** Calls `listener` with the place that a click, or the Enter key at the centre, chooses. */
  onClick(listener: (hit: Hit) => void): void {
    if (!this.clicks.length) this.keysHelp.append(" Enter selects the place at the centre.");
    this.clicks.push(listener);
    this.map.on("click", (event: L.LeafletMouseEvent) => listener(this.clicked(event)));
  }

  /** Repaints the map in the next frame. */
  redraw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  /** Shows the whole region. */
  fit(animate = true): void {
    const bounds = this.bounds();
    if (animate && !still()) this.map.flyToBounds(bounds, { duration: 0.5 });
    else this.map.fitBounds(bounds, { animate: false });
    this.fitted = true;
  }

  /** Shows a cell, marks it and reads it out. */
  goTo(row: number): void {
    if (!this.cells) return;
    this.visit({ name: "", id: this.cells.ids[row], box: this.cells.bounds(row), middle: this.cells.middle(row) });
  }

  /** Shows a place in the middle of the map, as large as it is or with its surroundings, and reads its value out. */
  private visit({ name, id, box: { west, south, east, north }, middle = [(west + east) / 2, (south + north) / 2] }: Named): void {
    const centre = L.latLng(middle[1], middle[0]);
    const nearer = this.fitZoom() + (east > west ? 0.5 : 2);
    const pixels = name && ((east - west) / 360) * WORLD * 2 ** this.fitZoom() >= SYMBOL ? this.map.getSize().x / 4 : 44; // of a named area, or of a cell or a symbol
    const zoom = Math.min(east > west ? Math.max(Math.log2((pixels / WORLD) * (360 / (east - west))), nearer) : nearer, this.map.getMaxZoom());
    this.hover = null;
    this.selection.choose(id === undefined ? -1 : this.cells?.ids.indexOf(id) ?? -1);
    this.keyboard = true;
    this.fitted = false;
    if (still()) this.map.setView(centre, zoom, { animate: false });
    else this.map.flyTo(centre, zoom, { duration: 0.6 });
    if (this.element.getBoundingClientRect().top < -80) this.element.scrollIntoView({ block: "start" });
    this.speak();
  }

  /** The zone or the nearest named place, if the basemap has names; without `own`, the name that is shown beside it. */
  nearest(longitude: number, latitude: number, own: string | null = null): string | null {
    const found = this.ground?.nearest(longitude, latitude)?.split(", ").filter((part) => part !== own) ?? [];
    return found.join(", ") || null;
  }

  /** What is shown, as a PNG file with a caption, the legend and the scale of lengths. */
  toPNG(caption: Caption): Promise<Blob> {
    this.sharpness = 2;
    this.paint();
    const made = pictureOf(this.canvas, this.ratio(), caption, this.legend, this.scaleBar(), this.tools.theme);
    this.sharpness = 1;
    this.paint();
    return made;
  }

  // ---------------------------------------------------------------- view

  private bounds(): L.LatLngBounds {
    const { west, south, east, north } = this.region;
    const whole = L.latLngBounds([Math.max(south, -85.05), west], [Math.min(north, 85.05), east]);
    return this.cells?.layer.shapes ? whole.pad(0.07) : whole; // zones reach the borders; their names and numbers need room
  }

  /** Tells the style sheet the region's shape, and that of the frame next to a panel, as wide as the geography allows. */
  private shape(): void {
    const [{ lng: west, lat: south }, { lng: east, lat: north }] = [this.bounds().getSouthWest(), this.bounds().getNorthEast()];
    const { style } = document.documentElement;
    const aspect = (unitX(east) - unitX(west)) / (unitY(south) - unitY(north));
    style.setProperty("--aspect", clamp(aspect, 0.75, 2.2).toFixed(4));
    const { extent } = this.ground ?? {}; // beyond it, the frame would be empty
    const spare = extent ? Math.max(Math.min(west - extent.west, extent.east - east), 0) / (east - west) : 1; // of the region's width
    style.setProperty("--wide", clamp(aspect, clamp(aspect * (1 + 2 * spare), 0.75, 1.6), 2.2).toFixed(4));
  }

  private fitZoom(): number {
    return this.map.getBoundsZoom(this.bounds());
  }

  private setLimits(): void {
    const finest = Math.min(...this.options.finestMetres);
    const latitude = this.bounds().getCenter().lat;
    const pixels = 110; // of the finest cell, at most
    const deepest = Math.log2((worldMetres(latitude) * pixels) / (WORLD * finest));
    this.map.setMaxZoom(Math.min(Math.max(deepest, this.fitZoom() + 2), 30));
    this.map.setMaxBounds(this.bounds().pad(0.5));
    this.map.setMinZoom(Math.min(this.fitZoom() - 0.5, this.map.getMaxZoom() - 1));
  }

  private showLinked(): void {
    const key = this.options.linkKey === undefined ? "map" : this.options.linkKey;
    const [zoom, latitude, longitude] = ((key && this.tools.link.get(key)) || "").split("/").map(Number);
    if ([zoom, latitude, longitude].every((value) => Number.isFinite(value)) && Math.abs(latitude) <= 90) {
      this.map.setView([latitude, longitude], Math.min(Math.max(zoom, this.map.getMinZoom()), this.map.getMaxZoom()), { animate: false });
      this.fitted = false;
    } else if (this.options.start) {
      const { west, south, east, north } = this.options.start;
      this.map.fitBounds([[south, west], [north, east]], { animate: false });
      this.fitted = false;
    } else this.fit(false);
  }

  private keepPlace(): void {
    const key = this.options.linkKey === undefined ? "map" : this.options.linkKey;
    const zoom = this.map.getZoom();
    const centre = this.map.getCenter();
    const whole = this.bounds().getCenter();
    const apart = this.map.latLngToContainerPoint(centre).distanceTo(this.map.latLngToContainerPoint(whole));
    this.fitted = Math.abs(zoom - this.fitZoom()) < 0.02 && apart < 3;
    const digits = clamp(Math.ceil(Math.log10((WORLD * 2 ** zoom) / 360)) + 1, 2, 20); // a tenth of a pixel
    if (key) this.tools.link.set(key, this.fitted ? null : `${zoom.toFixed(2)}/${centre.lat.toFixed(digits)}/${centre.lng.toFixed(digits)}`);
  }

  private resize(): void {
    const [fitted, centre] = [this.fitted, this.map.getCenter()];
    this.map.invalidateSize({ pan: false, animate: false });
    this.setLimits();
    if (fitted) this.fit(false);
    else this.map.setView(centre, this.map.getZoom(), { animate: false });
    this.paint();
  }

  /** Shows the map around a centre, in the size that its frame has now, with `sharpness` pixels a CSS pixel at least. */
  private show(centre: L.LatLng, zoom: number, sharpness: number): void {
    this.sharpness = sharpness;
    this.map.invalidateSize({ pan: false, animate: false });
    this.setLimits();
    this.map.setView(centre, zoom, { animate: false });
    this.paint();
  }

  // ---------------------------------------------------------------- painting

  private ratio(): number {
    return clamp(window.devicePixelRatio || 1, this.sharpness, 3);
  }

  private scene(): Scene & Window {
    const { x: width, y: height } = this.map.getSize();
    const zoom = this.map.getZoom();
    const world = WORLD * 2 ** zoom;
    const corner = this.map.getPixelOrigin().subtract(L.DomUtil.getPosition(this.map.getPane("mapPane") as HTMLElement));
    const [left, top] = [-corner.x, -corner.y];
    const project = (longitude: number, latitude: number): [number, number] => [unitX(longitude) * world + left, unitY(latitude) * world + top];
    return { project, width, height, zoom, mode: this.tools.theme.mode, world, left, top };
  }

  private redress(): void {
    this.dressed += 1;
    if (this.cells && this.shown) this.cells.dress(this.shown.measure, this.tools.theme.mode);
    this.redraw();
  }

  private paint(): void {
    const ratio = this.ratio();
    const scene = this.scene();
    const [width, height] = [Math.round(scene.width * ratio), Math.round(scene.height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    const scaled = (draw: () => void): void => {
      pen.save();
      pen.scale(ratio, ratio);
      draw();
      pen.restore();
    };
    const isOver = this.cells !== null && isOverLines(this.cells.layer);
    pen.clearRect(0, 0, width, height);
    if (!this.tiles) {
      pen.fillStyle = this.tools.theme.colour("--void");
      pen.fillRect(0, 0, width, height);
      scaled(() => {
        this.ground?.under(pen, scene);
        if (isOver) this.ground?.over(pen, scene);
      });
    }
    pen.globalAlpha = this.options.opacity ?? (this.tiles ? 0.7 : 1);
    pen.drawImage(this.painted(scene, ratio, width, height), 0, 0);
    pen.globalAlpha = 1;
    scaled(() => {
      if (!this.cells?.layer.shapes) this.outline(pen, scene, this.region, [[1, this.tools.theme.colour("--line")]]);
      if (!this.tiles && !isOver) this.ground?.over(pen, scene);
      const letters = new Letters(pen, scene, this.covered());
      if (this.cells?.layer.named) letters.symbols = this.symbols(scene).filter(([x0, , x1]) => x1 - x0 < SYMBOL);
      this.overlay?.(pen, scene, letters);
      letters.prepare();
      if (!this.tiles && letters.symbols.length) this.ground?.letterForemost(pen, scene, letters, this.cells?.layer.cell_id ?? []);
      this.letterZones(scene, letters);
      if (!this.tiles) this.ground?.letter(pen, scene, letters);
      this.mark(pen, scene);
    });
    this.legend.showScale(this.scaleBar());
    this.showTip();
  }

  /** Writes the names of a layer's zones, the highest values first. */
  private letterZones(scene: Scene, letters: Letters): void {
    const { cells } = this;
    if (!cells?.layer.named || !this.shown) return;
    const [{ value }, boxes, { cell_id: names, shapes }] = [this.shown.measure, this.symbols(scene), cells.layer];
    const rows = [...boxes.keys()].sort((a, b) => (value[b] ?? -Infinity) - (value[a] ?? -Infinity));
    letterZones(rows.map((row) => ({ name: names[row], box: boxes[row], middle: scene.project(...cells.middle(row)) })), letters, scene, (i, x, y) => {
      const { lng, lat } = this.map.containerPointToLatLng([x, y]);
      return inside(shapes?.[rows[i]] ?? [], lng, lat);
    });
  }

  /** What the search and the buttons cover of the canvas, if it is for the screen. */
  private covered(): Box[] {
    if (this.sharpness > 1) return [];
    const { left, top } = this.canvas.getBoundingClientRect();
    return [...this.element.querySelectorAll(".find, .zoom")].map((one) => {
      const side = one.getBoundingClientRect();
      return [side.left - left, side.top - top, side.right - left, side.bottom - top];
    });
  }

  /** Where zones lie on the canvas: the rectangles around them, in CSS pixels. */
  symbols({ project }: Pick<Scene, "project">): Box[] {
    const { cells } = this;
    if (!cells?.layer.shapes) return [];
    return cells.layer.cell_id.map((_, row) => {
      const { west, south, east, north } = cells.bounds(row);
      return [...project(west, north), ...project(east, south)] as Box;
    });
  }

  /** The cells without the map around them, repainted only where the view or the colours have changed. */
  private painted(scene: Window, ratio: number, width: number, height: number): HTMLCanvasElement {
    const state = [scene.world, scene.left, scene.top, ratio, width, height, this.dressed].join();
    if (state === this.sheetState) return this.sheet;
    this.sheetState = state;
    Object.assign(this.sheet, { width: Math.max(width, 1), height: Math.max(height, 1) });
    const pen = this.sheet.getContext("2d");
    if (pen) this.cells?.paint(pen, scene, ratio, this.options.missing ? 4 * ratio : 0);
    return this.sheet;
  }

  /** Draws a polygon's own border, or the rectangle of a cell. */
  private outlineRow(pen: CanvasRenderingContext2D, scene: Scene, row: number, lines: [number, string][]): void {
    const rings = this.cells?.layer.shapes?.[row];
    if (!rings) {
      if (this.cells) this.outline(pen, scene, this.cells.bounds(row), lines, this.options.missing ? 8 : 0);
      return;
    }
    pen.beginPath();
    for (const ring of rings) ring.forEach(([longitude, latitude], i) => pen[i ? "lineTo" : "moveTo"](...scene.project(longitude, latitude)));
    for (const [width, colour] of lines) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.stroke();
    }
  }

  private outline(pen: CanvasRenderingContext2D, scene: Scene, { west, south, east, north }: Bounds, lines: [number, string][], spare = 0): void {
    const [x0, y0] = scene.project(west, north);
    const [x1, y1] = scene.project(east, south);
    const wider = Math.max((spare - x1 + x0) / 2, 0);
    for (const [width, colour] of lines) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.strokeRect(x0 - wider, y0 - wider, x1 - x0 + 2 * wider, y1 - y0 + 2 * wider);
    }
  }

  /** Marks the cell under the pointer, or the map's centre for the keyboard. */
  private mark(pen: CanvasRenderingContext2D, scene: Scene): void {
    const hit = this.current();
    const lines: [number, string][] = [[3.5, scene.mode === "dark" ? "rgba(0,0,0,.65)" : "rgba(255,255,255,.8)"], [1.6, this.tools.theme.colour("--ink")]];
    for (const row of [this.selection.hit?.row ?? -1, hit?.row ?? -1]) if (row >= 0) this.outlineRow(pen, scene, row, lines);
    const cell = hit && hit.row >= 0 ? this.cells?.bounds(hit.row) : null;
    const isLarge = cell && scene.project(cell.east, 0)[0] - scene.project(cell.west, 0)[0] > 24; // its outline is enough
    if (!this.keyboard || this.hover || isLarge) return;
    const [x, y] = [scene.width / 2, scene.height / 2];
    for (const [width, colour] of lines) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        pen.moveTo(x + 4 * dx, y + 4 * dy);
        pen.lineTo(x + 11 * dx, y + 11 * dy);
      }
      pen.stroke();
    }
  }

  /** A round length and its CSS pixels at the map's centre. */
  private scaleBar(): { text: string; pixels: number } {
    const perPixel = worldMetres(this.map.getCenter().lat) / (WORLD * 2 ** this.map.getZoom());
    const length = niceStep(45 * perPixel);
    return { text: metres(length), pixels: length / perPixel };
  }

  // ---------------------------------------------------------------- tip

  private current(): Hit | null {
    return this.hover ?? (this.keyboard ? this.hitAt(this.map.getCenter()) : this.isTouched ? null : this.selection.hit); // a finger that scrolls takes the tip away
  }

  private hitAt({ lat, lng }: { lat: number; lng: number }): Hit {
    return { row: this.cells?.at(lng, lat) ?? -1, longitude: lng, latitude: lat };
  }

  /** The place of a click; of a tap that misses all cells the nearest one that a finger covers. */
  private clicked({ latlng, containerPoint }: L.LeafletMouseEvent): Hit {
    const hit = this.hitAt(latlng);
    if (hit.row >= 0 || !this.isTouched) return hit;
    for (let away = 2; away <= 16; away += 2) { // CSS pixels under a finger
      for (let way = 0; way < 2 * Math.PI; way += Math.PI / 12) {
        const near = this.hitAt(this.map.containerPointToLatLng(containerPoint.add([away * Math.cos(way), away * Math.sin(way)])));
        if (near.row >= 0) return near;
      }
    }
    return hit;
  }

  private showTip(): void {
    const hit = this.current();
    const words = hit && this.words?.(hit);
    this.tip.hidden = !words;
    if (!hit || !words) return;
    this.tip.replaceChildren(button("×", () => this.dismiss(), { class: "close", "aria-label": "Close" }), h("p", { class: "value" }, words.value), h("p", { class: "margin" }, words.margin),
      h("dl", {}, words.facts.map(([term, text]) => [h("dt", {}, term), h("dd", {}, text)])));
    const at = this.map.latLngToContainerPoint([hit.latitude, hit.longitude]);
    const size = this.map.getSize();
    const side = (place: number, extent: number, room: number): number =>
      Math.round(Math.min(Math.max(place + 18 + extent > room - 6 ? place - 18 - extent : place + 18, 6), Math.max(room - extent - 6, 6)));
    this.tip.style.transform = `translate(${side(at.x, this.tip.offsetWidth, size.x)}px,${side(at.y, this.tip.offsetHeight, size.y)}px)`;
  }

  private speak(): void {
    const words = this.words?.(this.hitAt(this.map.getCenter()));
    this.tools.say(words ? `${words.value}, ${words.margin}. ${words.facts.map((fact) => fact.join(": ")).join(". ")}` : "Outside the map");
  }

  private dismiss(): void {
    this.keyboard = false;
    this.selection.choose(-1);
    this.setHover(null);
  }

  private setHover(hit: Hit | null): void {
    this.hover = hit;
    if (hit) this.keyboard = false;
    for (const listener of this.hovers) listener(hit);
    this.redraw();
  }

  // ---------------------------------------------------------------- pointer and keys

  private zoomBy(levels: number): void {
    const zoom = Math.min(Math.max(this.map.getZoom() + levels, this.map.getMinZoom()), this.map.getMaxZoom());
    if (still()) this.map.setView(this.map.getCenter(), zoom, { animate: false });
    else this.map.flyTo(this.map.getCenter(), zoom, { duration: 0.25 });
  }

  /** One finger scrolls the page and two move the map; the wheel zooms only with Ctrl or ⌘. */
  private guardGestures(frame: HTMLElement, holder: HTMLElement): void {
    frame.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) return;
      event.stopPropagation();
      this.showHint(`${/Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl"} + scroll zooms the map`);
    }, { capture: true, passive: true });
    frame.addEventListener("pointerdown", (event) => {
      this.isTouched = event.pointerType === "touch";
      this.map.dragging[event.pointerType === "touch" ? "disable" : "enable"]();
    }, { capture: true });
    for (const name of ["touchstart", "touchmove"]) // while the page still scrolls, fingers cannot move the map
      frame.addEventListener(name, (event) => !event.cancelable && event.stopPropagation(), { capture: true, passive: true });
    holder.addEventListener("touchmove", (event) => {
      if (event.touches.length === 1) this.showHint("Use two fingers to move the map");
    }, { passive: true });
  }

  private showHint(text: string): void {
    this.hint.textContent = text;
    this.hint.hidden = false;
    clearTimeout(this.hinting);
    this.hinting = window.setTimeout(() => (this.hint.hidden = true), HINT_MS);
  }

  private listen(holder: HTMLElement): void {
    const at = (event: MouseEvent): Hit => this.hitAt(this.map.mouseEventToLatLng(event));
    holder.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.setHover(at(event));
    });
    holder.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.setHover(null);
    });
    this.map.on("click", (event: L.LeafletMouseEvent) => { // or a tap, on phones
      const hit = this.clicked(event);
      this.selection.choose(hit.row);
      this.setHover(hit);
    });
    holder.addEventListener("touchmove", () => this.setHover(null), { passive: true });
    holder.addEventListener("dblclick", (event) => {
      const zoom = this.map.getZoom() + (event.shiftKey ? -1 : 1);
      this.map.setZoomAround(this.map.mouseEventToContainerPoint(event), zoom, { animate: false });
    });
    holder.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "0" || event.key === "Home") this.fit();
      else if (event.key === "Escape") this.dismiss();
      else if (event.key === "Enter") {
        const hit = this.hitAt(this.map.getCenter());
        this.selection.choose(hit.row);
        for (const listener of this.clicks) listener(hit);
      }
      else if (!/^Arrow|^[-+=_]$/.test(event.key)) return;
      this.hover = null;
      this.keyboard = event.key !== "Escape";
      this.redraw();
      if (this.keyboard) this.map.once("moveend", () => this.speak());
    });
    holder.addEventListener("focus", () => {
      this.keyboard = holder.matches(":focus-visible");
      this.redraw();
    });
    holder.addEventListener("blur", () => {
      this.keyboard = false;
      this.redraw();
    });
  }
}
