// Where the places of a region lie on its map, and how large things are there: in Web Mercator, or on a plane.
import { clamp, metres, place, rounded, significant } from "../format";
import type { Bounds } from "../views";

const EARTH_RADIUS_KM = 6371.0088;
const MAX_LATITUDE = 85.0511287798;
const METRES_AROUND = 40075016.7;
const rad = (degrees: number): number => (degrees * Math.PI) / 180;
/** Longitude and latitude in Web Mercator's unit square, from the north-west. */
export const unitX = (longitude: number): number => (longitude + 180) / 360;
export const unitY = (latitude: number): number => 0.5 - Math.asinh(Math.tan(rad(clamp(latitude, -MAX_LATITUDE, MAX_LATITUDE)))) / (2 * Math.PI);

/** A rectangle of a region. */
export type Sides = Omit<Bounds, "axes">;
/** A region of the globe, or of a plane, which has axes. */
export type Region = Sides & Partial<Pick<Bounds, "axes">>;

export interface Projection {
  /** The axes of a plane; null on the globe. */
  readonly axes: [string, string] | null;
  /** What the sides of the unit square are in degrees of longitude, or in units of a plane. */
  readonly span: number;
  /** A place in the unit square, from the north-west. */
  readonly x: (longitude: number) => number;
  readonly y: (latitude: number) => number;
  /** What the unit square's width is in metres at a latitude, or in units of a plane. */
  readonly width: (latitude: number) => number;
  /** The area of a rectangle in `areaUnit`s. */
  readonly area: (bounds: Sides) => number;
  readonly areaUnit: string;
  /** Lengths and places in words; `finest` is the size of what has to be told apart. */
  readonly length: (size: number) => string;
  readonly place: (longitude: number, latitude: number, finest: number) => string;
}

const GLOBE: Projection = {
  axes: null,
  span: 360,
  x: unitX,
  y: unitY,
  width: (latitude) => METRES_AROUND * Math.cos(rad(latitude)),
  area: ({ west, south, east, north }) => EARTH_RADIUS_KM ** 2 * rad(east - west) * (Math.sin(rad(north)) - Math.sin(rad(south))),
  areaUnit: "km²",
  length: metres,
  place,
};

/** The projection of a region: one with axes is of a plane, whose longer side is that of the unit square. */
export function projectionOf(region: Region): Projection {
  if (!region.axes) return GLOBE;
  const axes = region.axes;
  const span = Math.max(region.east - region.west, region.north - region.south);
  return {
    axes,
    span,
    x: (across) => (across - region.west) / span,
    y: (along) => (region.north - along) / span,
    width: () => span,
    area: ({ west, south, east, north }) => (east - west) * (north - south),
    areaUnit: "square unit",
    length: (size) => significant(size, 4),
    place: (across, along, finest) => {
      const digits = clamp(Math.ceil(-Math.log10(finest)), 0, 12);
      return `${axes[0]} ${rounded(across, digits)}, ${axes[1]} ${rounded(along, digits)}`;
    },
  };
}
