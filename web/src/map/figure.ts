// The map of every page: Leaflet in Web Mercator, with the basemap and the cells on one canvas.
import type * as L from "leaflet";
import type { Bounds, Layer, Measure } from "../views";
import type { Ground, Scene } from "./ground";

export interface MapOptions {
  /** What the map shows, for screen readers. */
  readonly label: string;
  /** Width and height of the finest cell in metres: how far one can zoom in, and how exactly places are written. */
  readonly finestMetres: [number, number];
}

/** A place on the map: the cell there, as a row of the layer that is shown, or -1. */
export interface Hit {
  readonly row: number;
  readonly longitude: number;
  readonly latitude: number;
}

export interface MapFigure {
  readonly element: HTMLElement;
  readonly map: L.Map; // for a product's own gestures
  /** new MapFigure(root, region, options, tools): appends the map to `root`. Place and zoom are kept in the link as `map`. */
  /** Shows a layer coloured by one of its measures; draws and letters the legend. `note` is added to the legend. */
  setLayer(layer: Layer, measure: Measure, note?: string): void;
  setBasemap(ground: Ground | null): void;
  /** Shows tiles of a server under the cells; null takes them away. */
  setTiles(pattern: string | null): void;
  /** Paints over the cells whenever the map is painted. */
  setOverlay(paint: ((pen: CanvasRenderingContext2D, scene: Scene) => void) | null): void;
  redraw(): void;
  onHover(listener: (hit: Hit | null) => void): void;
  onClick(listener: (hit: Hit) => void): void;
  /** What the tip says of a place: the first text is the value, the second its margin, then terms and texts. */
  setTip(words: (hit: Hit) => { value: string; margin: string; facts: [string, string][] } | null): void;
  /** Shows the whole region. */
  fit(): void;
  /** Shows a cell and reads it out. */
  goTo(row: number): void;
  /** What is shown as a PNG file, with legend and scale bar. */
  toPNG(title: string): Promise<Blob>;
}
