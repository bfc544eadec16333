// The map on paper.
import type * as L from "leaflet";

const [WIDTH, HEIGHT] = [700, 420]; // CSS pixels: a sheet's width, and the height of a map that leaves room for its legend and a list
const SHARPNESS = 3; // pixels a CSS pixel, at least

/**
 * Gives a map the width of the sheet on paper, where its frame would change without a repaint. What was shown is shown there, and again afterwards.
 *
 * show: shows the map around a centre at a zoom, in the size that its frame has then, with `sharpness` pixels a CSS pixel at least.
 */
export function listenToPrinting({ style }: HTMLElement, map: L.Map, show: (centre: L.LatLng, zoom: number, sharpness: number) => void): void {
  let before: [L.LatLng, number] | null = null;
  addEventListener("beforeprint", () => {
    const { x: width, y: height } = map.getSize();
    if (!width || !height || before) return;
    const tall = Math.min(Math.round((WIDTH * height) / width), HEIGHT);
    before = [map.getCenter(), map.getZoom()];
    Object.assign(style, { flex: "none", width: `${WIDTH}px`, aspectRatio: `${WIDTH} / ${tall}`, maxHeight: "none" });
    show(before[0], before[1] + Math.log2(Math.min(WIDTH / width, tall / height)), SHARPNESS);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    Object.assign(style, { flex: "", width: "", aspectRatio: "", maxHeight: "" });
    show(...before, 1);
    before = null;
  });
}
