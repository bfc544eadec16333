// The map on paper.
import type * as L from "leaflet";

const [WIDTH, HEIGHT] = [600, 420]; // CSS pixels of a printed map, at most: with its legend and a list it fills a page
const SHARPNESS = 3; // pixels a CSS pixel, at least

/**
 * Gives a map a size of its own on paper, where its frame's would change without a repaint. What was shown is shown there, and again afterwards.
 *
 * show: shows the map around a centre at a zoom, in the size that its frame has then, with `sharpness` pixels a CSS pixel at least.
 */
export function listenToPrinting({ style }: HTMLElement, map: L.Map, show: (centre: L.LatLng, zoom: number, sharpness: number) => void): void {
  let before: [L.LatLng, number] | null = null;
  addEventListener("beforeprint", () => {
    const { x: width, y: height } = map.getSize();
    if (!width || !height || before) return;
    const scale = Math.min(WIDTH / width, HEIGHT / height);
    before = [map.getCenter(), map.getZoom()];
    Object.assign(style, { width: `${Math.round(width * scale)}px`, height: `${Math.round(height * scale)}px`, maxHeight: "none" });
    show(before[0], before[1] + Math.log2(scale), SHARPNESS);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    Object.assign(style, { width: "", height: "", maxHeight: "" });
    show(...before, 1);
    before = null;
  });
}
