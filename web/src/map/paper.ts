// The map on paper.
import type * as L from "leaflet";

const [WIDTH, HEIGHT] = [686, 470]; // CSS pixels: of the text on A4, and the height of a map that leaves room for the head, the legend and a list of twelve
const SHARPNESS = 3; // pixels a CSS pixel, at least

/**
 * Gives a map its size on paper, where its frame would change without a repaint: as wide as the text, unless that is more than the geography
 * allows. What was shown is shown there, and again afterwards.
 *
 * show: shows the map around a centre at a zoom, in the size that its frame has then, with `sharpness` pixels a CSS pixel at least.
 */
export function listenToPrinting({ style }: HTMLElement, map: L.Map, show: (centre: L.LatLng, zoom: number, sharpness: number) => void): void {
  let before: [L.LatLng, number] | null = null;
  addEventListener("beforeprint", () => {
    const { x: width, y: height } = map.getSize();
    if (!width || !height || before) return;
    const widest = Number(document.documentElement.style.getPropertyValue("--wide")) || Infinity; // width over height: beyond it there is no geography
    const ratio = Math.min(Math.max(width / height, WIDTH / HEIGHT), widest);
    const tall = Math.min(Math.round(WIDTH / ratio), HEIGHT);
    const wide = Math.round(tall * ratio);
    before = [map.getCenter(), map.getZoom()];
    style.setProperty("--of-text", String(wide / WIDTH)); // which is wider on other sheets
    Object.assign(style, { flex: "none", width: `${wide}px`, aspectRatio: `${wide} / ${tall}`, maxHeight: "none" });
    show(before[0], before[1] + Math.log2(tall / height), SHARPNESS);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    Object.assign(style, { flex: "", width: "", aspectRatio: "", maxHeight: "" });
    show(...before, 1);
    before = null;
  });
}
