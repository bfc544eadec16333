// The buttons on the map.
import { button, h, svg } from "../dom";

/** Buttons that zoom in by one level, out by one, and show everything. */
export function zoomButtons(zoomBy: (levels: number) => void, fit: () => void): HTMLElement {
  const icon = (label: string, path: string, act: () => void): HTMLButtonElement => {
    const made = button("", act, { "aria-label": label, title: label });
    made.append(svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: path })));
    return made;
  };
  return h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
    icon("Zoom in", "M8 3v10M3 8h10", () => zoomBy(1)), icon("Zoom out", "M3 8h10", () => zoomBy(-1)),
    icon("Show everything", "M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3", fit));
}
