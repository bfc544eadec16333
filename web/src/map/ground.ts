// What the map asks of a basemap (map/basemap.ts makes it) and of a product that paints on the map.
import type { Mode } from "../theme";
import type { Bounds } from "../views";
import type { Letters } from "./letters";

/** From degrees to CSS pixels from the canvas's upper left corner. */
export type Project = (longitude: number, latitude: number) => [number, number];

/** What a painter knows: where places lie, what part of the canvas is in sight, and the mode's colours. */
export interface Scene {
  readonly project: Project;
  readonly width: number; // CSS pixels
  readonly height: number;
  readonly zoom: number; // Leaflet's
  readonly mode: Mode;
}

/** A part of the canvas in CSS pixels: left, top, right, bottom. */
export type Box = [number, number, number, number];

/** Paints over the cells, but not over what `letters` holds, and takes from them the places where no name may stand. */
export type Overlay = (pen: CanvasRenderingContext2D, scene: Scene, letters: Letters) => void;

/** A name and where it lies; the sides of a point are equal. */
export interface Named {
  readonly name: string;
  /** A zone's id, which a reader may search for too. */
  readonly id?: string;
  readonly box: Bounds;
  /** Longitude and latitude of a point in it; that of the box without it. */
  readonly middle?: readonly [number, number];
}

/** Geography. It is painted on the map's own canvas, so that it agrees with the cells and is in the PNG. */
export interface Ground {
  readonly source: string;
  /** What land and water cover, the open sea included; null without land areas. */
  readonly extent: Bounds | null;
  /** Places by their rank, then zones. */
  readonly names: readonly Named[];
  under(pen: CanvasRenderingContext2D, scene: Scene): void;
  over(pen: CanvasRenderingContext2D, scene: Scene): void;
  /** Writes the foremost place's name before others, unless a zone has it. */
  letterForemost(pen: CanvasRenderingContext2D, scene: Scene, letters: Letters, zones: readonly string[]): void;
  /** Writes the names that have room beside what is taken. */
  letter(pen: CanvasRenderingContext2D, scene: Scene, letters: Letters): void;
  /** The zone that holds a place, else the nearest place with a name, such as `near Harbour`; null where nothing has names. */
  nearest(longitude: number, latitude: number): string | null;
}
