// A map of cells: what its colours show, its layers, the list of the highest lower bounds, and the value under the pointer.
import { button, choice, h } from "../dom";
import { csv, offer } from "../download";
import { atMost, capital, clamp, interval, metres, notNegative, percent, place, shareWords, significant, within } from "../format";
import { geographyOf } from "../map/basemap";
import { drawBadges, placeBadges, type Spot } from "../map/badges";
import type { Cells } from "../map/cells";
import { MapFigure, SYMBOL, type Hit, type TipWords } from "../map/figure";
import { zoneFont } from "../map/names";
import type { Caption, Listed } from "../map/picture";
import { SlotPanel } from "../map/slots";
import { captionOf, type Product, type Tools } from "../product";
import type { Layer, MapBody, Measure, PageView } from "../views";

const [LISTED, MOST_LISTED] = [6, 12]; // places at first, and in a large window or on paper; every further click doubles them
const LARGE = "(min-width: 1200px) and (min-height: 1000px)"; // where the longer list fits next to the map

/** A difference in users in words: about 100 more users. */
function moreWords(value: number, low: number, high: number, unit: string): string {
  const users = within(Math.abs(value), low, high);
  return Number(users) === 0 ? `about as many ${unit}` : `about ${users} ${value > 0 ? "more" : "fewer"} ${unit}`;
}

/** A cell's value with what is known of it, which the list of places repeats: [value, margin]. */
export function valueWords(measure: Measure, row: number): [string, string] {
  const listed = measure.kind === "change" ? undefined : measure.listed.find(([one]) => one === row); // a list of changes is in users
  const [, value, low, high] = listed ?? [row, measure.value[row], measure.low[row], measure.high[row]];
  if (value === null) return ["unknown", "too few users for an estimate"];
  if (low === null || high === null) return [`about ${significant(value, 2)} ${measure.unit}`.trim(), "interval unknown"];
  const level = listed ? "95% interval, as in the list" : "95% interval for this place only (pointwise)";
  if (measure.kind === "rate") return [shareWords(value, low, high), level];
  if (measure.kind === "change" && measure.unit.startsWith("in ")) return [`${significant(value, 2)} ${measure.unit.replace("in ", "")}`, ""];
  if (measure.kind === "change") return [moreWords(value, low, high, measure.unit), `${interval(low, high)}, ${level}`];
  if (measure.kind === "count" && measure.uncertain[row]) return [`at most about ${atMost(value, high)} ${measure.unit}`, "may be empty: indistinguishable from zero"];
  const shown = measure.kind === "count" ? notNegative(value, low, high) : [value, low, high] as const;
  return [`about ${within(...shown)} ${measure.unit}`.trim(), `${interval(shown[1], shown[2])}, ${level}`];
}

/** How large a cell is: its sides, or a polygon's area. */
function sizeWords(figure: MapFigure, body: MapBody, row: number): string {
  const cells = figure.cells;
  if (cells?.layer.shapes) return `${significant(cells.area(row), 3)} km²`;
  const side = 2 ** (body.depth - (cells?.layer.level[row] ?? 0));
  return `${metres(body.finest_metres[0] * side)} × ${metres(body.finest_metres[1] * side)}`;
}

/** The named place nearest to a point, unless it lies in a zone whose own name no other zone has. */
export function nearestTo(figure: Pick<MapFigure, "nearest">, { zones, cell_id, named }: Layer, row: number, longitude: number, latitude: number): string | null {
  const own = zones && row >= 0 ? (zones[row][1] ?? zones[row][0]) : null;
  const isName = named && own !== null && /[\p{Ll}\p{Lo}]|^\p{Lu}+$/u.test(own); // and no number, or code with a digit
  if (isName && zones?.filter(([zone, name]) => (name ?? zone) === own).length === 1) return null;
  return figure.nearest(longitude, latitude, own === null ? null : cell_id[row]);
}

/** What the tip says of a cell: the measure that is shown, where it lies, and the other measures. */
export function cellWords(figure: MapFigure, body: MapBody, layer: Layer, measure: Measure, { row, longitude, latitude }: Hit): TipWords {
  const finest = Math.min(...body.finest_metres);
  const near = nearestTo(figure, layer, row, longitude, latitude);
  const where: [string, string][] = [...(near === null ? [] : [["Where", near] as [string, string]]), ["Position", place(longitude, latitude, finest)]];
  if (row < 0 || !figure.cells) return { value: "No value here", margin: body.missing ?? "", facts: where };
  const lead = measure.kind === "change" ? layer.measures.find(({ unit }) => !unit.startsWith("in ")) ?? measure : measure; // people ask how many, then how sure
  const [value, margin] = valueWords(lead, row);
  const name = layer.shapes ? layer.cell_id[row] : null;
  const share = !layer.shapes && layer.area[row] < 0.9995 ? `, ${percent(layer.area[row])} of it; finer cells cover the rest` : "";
  const others = layer === body.slots?.layer ? [] : layer.measures.filter((one) => one !== lead);
  const facts: [string, string][] = others.map((one) => [one.name, valueWords(one, row)[0]]);
  const users = measure.value[row];
  const isByArea = measure.scale.unit.includes("km²"); // else colours compare numbers of users, whatever the areas
  if (isByArea && measure.kind === "count" && users !== null && !measure.uncertain[row]) facts.push(["Density", `about ${significant(users / figure.cells.area(row), 2)} per km²`]);
  const size = sizeWords(figure, body, row);
  if (name === null) facts.push(["Cell", `${size}${share}`]);
  else if (isByArea) facts.push(["Area", size]);
  facts.push(...where);
  return { value: name === null ? capital(value) : `${name}: ${value}`, margin, facts };
}

/** The cells or zones of a layer as a table, with all its measures: of zones, the columns that the release has for them. */
export function layerCsv(figure: Pick<MapFigure, "cells">, { zones, cell_id, measures }: Layer, count = "users"): string {
  const values = (i: number): (number | null)[] => measures.flatMap(({ value, low, high }) => [value[i], low[i], high[i]]);
  const heads = measures.flatMap(({ name, kind, unit }) => (zones && kind === "count" ? [unit === "records" ? unit : count, "low", "high"] : [name, `${name} low`, `${name} high`]));
  if (zones) {
    const named = zones.some(([, name]) => name !== null);
    return csv(["zone", ...(named ? ["name"] : []), ...heads], zones.map(([zone, name], i) => [zone, ...(named ? [name] : []), ...values(i)]));
  }
  return csv(["cell_id", "west", "south", "east", "north", ...heads], cell_id.map((name, i) => {
    const bounds = figure.cells?.bounds(i);
    return [name, bounds?.west ?? null, bounds?.south ?? null, bounds?.east ?? null, bounds?.north ?? null, ...values(i)];
  }));
}

/** The list's text for a cell, and a longer one: the estimate and its interval. */
function listWords(figure: MapFigure, body: MapBody, measure: Measure, [row, value, low, high]: Measure["listed"][number], byUsers: boolean): [string, string] {
  if (measure.kind === "rate") return [shareWords(value, low, high), shareWords(value, low, high)];
  const words = (area: number): string => `${within(value / area, low / area, high / area)} (${interval(low / area, high / area)})`;
  if (measure.kind !== "count") return [words(1), interval(low, high)];
  const part = figure.cells && !figure.cells.layer.shapes && figure.cells.layer.area[row] < 0.9995 ? "part of " : ""; // finer cells cover the rest
  return [words(byUsers ? 1 : (figure.cells?.area(row) ?? 1)), `${words(1)} ${measure.unit} in ${part}${sizeWords(figure, body, row)}`];
}

/** Gives the bars of a list of places the colours that their cells have now. */
export function tint(bars: Iterable<HTMLElement>, cells: Cells | null): void {
  for (const bar of bars) bar.style.background = cells?.colour(Number(bar.dataset.row)) ?? "";
}

let forPaper: (isPaper: boolean) => void = () => undefined; // of the list that is shown
for (const name of ["beforeprint", "afterprint"]) addEventListener(name, () => forPaper(name === "beforeprint"), { capture: true }); // before the map is painted

/** The list of the highest lower bounds. A click shows the cell on the map. */
export function listOf(figure: MapFigure, body: MapBody, measure: Measure): HTMLElement {
  const { cells } = figure;
  const { radius, noun } = cells?.layer ?? {};
  const isOfZones = Boolean(cells?.layer.shapes); // which people compare by their users, whatever their areas
  const sameSize = !isOfZones && new Set(measure.listed.map(([row]) => figure.cells?.layer.level[row])).size === 1;
  const isByArea = measure.kind === "count" && measure.listed.length > 0 && !sameSize && !isOfZones; // cells of several sizes are compared by their density
  const isFound = measure.listed.some(([row]) => !measure.uncertain[row]);
  const title = measure.kind === "count" ? `Busiest ${isOfZones && noun !== "zone" ? noun : "place"}s${isByArea ? `, by ${measure.unit} per km²` : ""}` : measure.kind === "change" ? (isFound ? "Most significant changes" : "Largest differences") : `Highest (95% sure): ${measure.name.replace(/^Rate: /, "").toLowerCase()}`;
  const finest = Math.min(...body.finest_metres);
  const isKnown = (row: number): boolean => measure.kind === "count" || !measure.uncertain[row]; // else a bar would say too much
  /** The length of the bars: of counts the estimate, otherwise the end of the interval nearer to zero. */
  const bound = ([row, value, low, high]: Measure["listed"][number]): number => (measure.kind === "count" ? (isOfZones ? value : value / (figure.cells?.area(row) ?? 1))
    : measure.kind === "change" ? Math.min(Math.abs(low), Math.abs(high)) : low);
  const { listed } = measure;
  const most = Math.max(...listed.map(bound), 1e-12);
  let shown = Math.min(matchMedia(LARGE).matches ? MOST_LISTED : LISTED, listed.length);
  const list = h("ol", { class: "places" });
  figure.setOverlay((pen, { project, width, height, mode }, letters) => {
    const zones = figure.symbols({ project });
    zoneFont(letters);
    const spots = listed.slice(0, shown).flatMap(([row]): Spot[] => {
      if (!cells) return [];
      const { west, south, east, north } = cells.bounds(row);
      const [x, y] = project(...cells.middle(row));
      const half = cells.layer.named ? letters.half(cells.layer.cell_id[row]) : undefined;
      return [{ x, y, half, box: zones[row] ?? [...project(west, north), ...project(east, south)] }];
    });
    const badges = placeBadges(spots, zones.filter(([x0, , x1]) => x1 - x0 < SYMBOL), letters.occupied, width, height);
    for (const box of drawBadges(pen, badges, mode)) letters.take(box);
    letters.prepare();
    zoneFont(letters);
    for (const { number, name } of badges) if (cells && name) letters.writeLines([cells.layer.cell_id[listed[number - 1][0]]], (name[0] + name[2]) / 2, name[3] - 6, () => true, []);
  });
  const more = button("Show more", () => {
    const before = shown;
    shown *= 2;
    fill();
    list.children[before]?.querySelector("button")?.focus();
  }, { class: "link" });
  const fill = (): void => {
    figure.redraw();
    list.replaceChildren(...listed.slice(0, shown).map((one, i) => {
      const [row] = one;
      const cell = figure.cells?.bounds(row);
      const [longitude, latitude] = cell ? [(cell.west + cell.east) / 2, (cell.south + cell.north) / 2] : [0, 0];
      const [words, detail] = listWords(figure, body, measure, one, !isByArea);
      const bar = h("i", { "data-row": row });
      bar.style.width = `${clamp((100 * bound(one)) / most, 1, 100)}%`;
      tint([bar], figure.cells);
      const zone = figure.cells?.layer.shapes ? figure.cells.layer.cell_id[row] : null;
      const near = cells && nearestTo(figure, cells.layer, row, longitude, latitude);
      const name = zone ?? near ?? place(longitude, latitude, finest);
      const item = button("", () => figure.goTo(row), { title: `Show on the map: ${detail}` });
      item.append(h("span", {}, h("i", { class: "key-number" }, String(i + 1)), name), h("b", {}, words), isByArea ? h("span", { class: "wide-line" }, `about ${detail}`) : zone !== null && near !== null ? h("span", { class: "wide-line" }, near) : "", isKnown(row) && h("span", { class: "bar", "aria-hidden": "true" }, bar) || "");
      return h("li", {}, item);
    }));
    more.hidden = shown >= listed.length;
  };
  fill();
  let usual = shown;
  forPaper = (isPaper) => {
    if (!list.isConnected) return; // the map shows something else by now
    if (isPaper) usual = shown;
    shown = isPaper ? Math.max(shown, Math.min(MOST_LISTED, listed.length)) : usual;
    fill();
  };
  const unit = measure.kind !== "count" || !listed.length ? "" : isByArea ? `Below: the number of ${measure.unit} in the cell. `
    : `${capital(measure.unit)} ${radius ? `within ${metres(radius)} of each ${noun === "place" ? "point" : noun}` : isOfZones ? "in a zone" : `in a cell of ${sizeWords(figure, body, listed[0][0])}`}. `;
  return h("section", { class: "listed" }, h("h2", {}, title), h("p", { class: "quiet" }, unit + measure.listed_note), list, more);
}

/** The list of places in a panel, to which the numbers on the map belong, for a picture. */
export function listedIn(panel: HTMLElement): Listed | null {
  const text = (root: Element, name: string): string => root.querySelector(name)?.textContent ?? "";
  const places = [...panel.querySelectorAll(".places button")].map((one): [string, string] => [[...(one.firstElementChild?.childNodes ?? [])].map((part) => part.textContent).join("  "), text(one, "b")]);
  return places.length ? { heading: `${text(panel, "h2")}. ${text(panel, ".quiet")}`, places } : null;
}

/** The controls next to the map. Shows the layer and the measure that the link names. */
export function mapPanel(figure: MapFigure, body: MapBody, tools: Tools): { panel: HTMLElement; current: () => [Layer, Measure]; caption: (view: PageView) => Caption } {
  const last = body.layers.length - 1;
  let place = tools.link.index("layer", body.layers.length, last);
  let number = tools.link.index("measure", body.layers[last].measures.length, 0);
  const title = h("h2");
  const note = h("p", { class: "note", "aria-live": "polite" });
  const colours = h("div");
  const list = h("div");
  const slider = h("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Layer" });
  let times: SlotPanel | null = null;
  const hasLevels = last > 0 && body.layers[last].shapes !== null; // levels of zones, none of them more final than another
  const levels = h("div", { class: "levels" });
  const steps = hasLevels ? h("section", {}, levels, note)
    : h("section", {}, title, note, last > 0 && h("div", { class: "slide" }, h("span", {}, "coarse"), slider, h("span", {}, "final")));
  const current = (): [Layer, Measure] => {
    if (body.slots && times && times.slot >= 0) return [body.slots.layer, body.slots.layer.measures[times.slot]];
    const layer = body.layers[place];
    return [layer, layer.measures[Math.min(number, layer.measures.length - 1)]];
  };
  const caption = (view: PageView): Caption => ({ ...captionOf(view), listed: listedIn(list) });
  const show = (): void => {
    const [layer, measure] = current();
    figure.setLayer(layer, measure);
    figure.setLabel(`Map: ${measure.name}. ${layer.title}`);
    steps.hidden = layer === body.slots?.layer;
    if (steps.hidden) {
      figure.setLabel(`Map: ${measure.name}`);
      figure.setOverlay(null);
      list.replaceChildren();
      colours.replaceChildren();
      return;
    }
    title.textContent = layer.title;
    if (hasLevels) {
      const focused = levels.contains(document.activeElement);
      levels.replaceChildren(choice("Zones", body.layers.map((one) => one.title), place, (chosen) => {
        place = chosen;
        show();
      }));
      if (focused) (levels.querySelector("input:checked") as HTMLElement | null)?.focus();
    }
    note.textContent = layer.note;
    slider.value = String(place);
    slider.setAttribute("aria-valuetext", layer.title);
    figure.setOverlay(null);
    list.replaceChildren(...(measure.listed_note ? [listOf(figure, body, measure)] : []));
    colours.replaceChildren(...(layer.measures.length > 1 ? [choice("Colour by", layer.measures.map((one) => one.name), layer.measures.indexOf(measure), (chosen) => {
      number = chosen;
      tools.link.set("measure", chosen || null);
      show();
      (colours.querySelector("input:checked") as HTMLElement | null)?.focus();
    })] : []));
    tools.link.set("layer", place === last ? null : place);
  };
  slider.addEventListener("input", () => {
    place = Number(slider.value);
    show();
  });
  tools.link.onChange(() => {
    place = tools.link.index("layer", body.layers.length, last);
    number = tools.link.index("measure", body.layers[last].measures.length, 0);
    show();
  });
  tools.theme.onChange(() => tint(list.querySelectorAll<HTMLElement>("[data-row]"), figure.cells));
  figure.setTip((hit) => cellWords(figure, body, ...current(), hit));
  show();
  if (body.slots) times = new SlotPanel(body.slots, body.region, figure, tools, show);
  if (times) show();
  return { panel: h("aside", { class: "panel", "aria-label": "Controls" }, times?.element, hasLevels && steps, colours, list, !hasLevels && steps), current, caption };
}

/** The first screen of a map. */
export const showMap: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  const body = view.body as MapBody;
  const figure = new MapFigure(root, body.region, { label: view.title, finestMetres: body.finest_metres, missing: body.missing, start: body.start, choiceKey: body.slots ? undefined : "at" }, tools);
  geographyOf(view, tools)(figure);
  const { panel, current, caption } = mapPanel(figure, body, tools);
  root.append(panel);
  panel.append(h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report"))));
  tools.addButton("Picture", async () => offer(`${view.file_name}.png`, await figure.toPNG(caption(view))));
  tools.addButton("Table", () => offer(`${view.file_name}.csv`, layerCsv(figure, current()[0], view.job === "histogram" ? "count" : "users"))).title += "; low and high are 95% intervals, each for one place only (pointwise)";
};
