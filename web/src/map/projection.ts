// Where places lie on the map, in Web Mercator, and how large things are there.
import { clamp } from "../format";
import type { Bounds } from "../views";

const EARTH_RADIUS_KM = 6371.0088;
const MAX_LATITUDE = 85.0511287798;
const METRES_AROUND = 40075016.7;
const rad = (degrees: number): number => (degrees * Math.PI) / 180;
/** Longitude and latitude in Web Mercator's unit square, from the north-west. */
export const unitX = (longitude: number): number => (longitude + 180) / 360;
export const unitY = (latitude: number): number => 0.5 - Math.asinh(Math.tan(rad(clamp(latitude, -MAX_LATITUDE, MAX_LATITUDE)))) / (2 * Math.PI);

/** The width of Web Mercator's unit square in metres at a latitude. */
export const worldMetres = (latitude: number): number => METRES_AROUND * Math.cos(rad(latitude));
/** The area of a rectangle, square kilometres. */
export const areaKm2 = ({ west, south, east, north }: Bounds): number => EARTH_RADIUS_KM ** 2 * rad(east - west) * (Math.sin(rad(north)) - Math.sin(rad(south)));
