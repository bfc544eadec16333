// Nightly releases: users by night, one night's map, and the change between two nights.
import { ChartFigure, type ChartOptions } from "../chart/figure";
import { button, choice, h } from "../dom";
import { csv, offer } from "../download";
import { capital, clamp, counted, interval, known, metres, NOISE_Z, percent, place, plural, significant, whole, within } from "../format";
import { geographyOf } from "../map/basemap";
import { MapFigure, type Hit, type TipWords } from "../map/figure";
import type { Caption } from "../map/picture";
import { captionOf, type Product, type Tools } from "../product";
import { changeLayer, compare, RATE, type Change } from "../timeline/changes";
import { countsUsers, NightMaps, type ZoneCount } from "../timeline/nights";
import type { Layer, MapBody, Night, NightMap, PageView, PlaceChange, Scale, TimelineBody } from "../views";
import { cellWords, layerCsv, listedIn, listOf, tint } from "./map";

const DAY = 86_400_000;
const Z = 1.96;
const LISTED = 6;
const WIDE = 800; // pixels
const RELATIVE = [["before", 1, "the map before"], ["week", 7, "a week before"]] as const;
const FEW = 62; // days whose maps the page loads at once
const ZONE_HINT = "Click or tap a place on the map to see its numbers by day.";
const [A, B, CHANGE] = [0, 1, 2]; // what the map shows

const time = (date: string): number => Date.parse(`${date}T00:00:00Z`);
const spell = (date: string, style: Intl.DateTimeFormatOptions): string => new Date(time(date)).toLocaleDateString("en-GB", { timeZone: "UTC", ...style });
export const shortDate = (date: string): string => spell(date, { day: "numeric", month: "short", year: "numeric" });
const dayOf = (at: number): string => new Date(at).toLocaleDateString("en-GB", { timeZone: "UTC", day: "numeric", month: "short" });
const longDate = (date: string): string => spell(date, { weekday: "long", day: "numeric", month: "long", year: "numeric" });

/** The night that `night` is compared with: the last that has a map and is so many days earlier, or more. */
export function earlier(nights: Night[], night: Night, days: number): Night | null {
  return nights.filter((one) => one.map !== null && time(one.date) <= time(night.date) - days * DAY).at(-1) ?? null;
}

/** A night's number of users with the digits that are known, and its 95% margin; null without a number. */
export const usersOf = ({ users, users_stddev: stddev }: Pick<Night, "users" | "users_stddev">, unit?: string): string | null => (users === null ? null : counted(users, stddev ?? 0, unit));

/** Whether the estimate of `shown` is based on a night's answers, among others. */
const isUsedFor = (shown: Night | null, { date }: Night): boolean => (shown?.rests_on ?? []).some(([first, last]) => first <= date && date <= last);

/** The row of a layer that shows a cell: itself, the smallest cell around it, or the first inside it; null without any. */
export function rowOf(ids: string[], id: string): number | null {
  for (let length = id.length; length > 0; length--) {
    const row = ids.indexOf(id.slice(0, length));
    if (row >= 0) return row;
  }
  const inside = ids.findIndex((one) => one.startsWith(id));
  return inside < 0 ? null : inside;
}

/** What is known of the users of a night: an estimate with the ends of its 95% interval. */
type Known = Pick<ZoneCount, "users" | "low" | "high">;

const knownOf = ({ users, users_stddev: stddev }: Night): Known | null => (users === null ? null : { users, low: Math.max(users - NOISE_Z * (stddev ?? 0), 0), high: users + NOISE_Z * (stddev ?? 0) });

/** The bars of users by night, of all users or of those in a zone. A chart of few nights is narrow. */
export function nightsChart(nights: Night[], chosen: (Night | null)[], zone: string | null = null, counts: (Known | null)[] = nights.map(knownOf), unit = "users"): ChartOptions {
  const counted = zone === null ? capital(unit) : `${capital(unit)} in ${zone}`;
  const [first, last] = [time(nights[0].date), time(nights[nights.length - 1].date)];
  const style = (night: Night): string => (night === chosen[B] ? "s0" : night === chosen[A] ? "s1" : isUsedFor(chosen[B], night) ? "s2" : "s5");
  const bars = nights.map((night, i) => [time(night.date) - 0.4 * DAY, time(night.date) + 0.4 * DAY, Math.max(counts[i]?.users ?? 0, 0), style(night)] as const);
  const margins = nights.map(({ date }, i) => [time(date), counts[i]?.low ?? 0, counts[i]?.high ?? 0] as const);
  const has = (key: string): boolean => bars.some(([, , , one]) => one === key);
  return {
    title: `${counted} by day`, description: `${plural(nights.length, "day")}, ${shortDate(nights[0].date)} to ${shortDate(nights[nights.length - 1].date)}.`,
    x: { label: "", domain: [first - 0.7 * DAY, last + 0.7 * DAY], kind: "time", format: dayOf, ticks: Array.from({ length: (last - first) / DAY + 1 }, (_, i) => first + i * DAY) }, y: { label: counted, domain: [0, 1.06 * Math.max(...margins.map(([, , high]) => high), 1)], format: (users) => significant(users) },
    marks: [{ kind: "bars", bars }, { kind: "upright", style: "mark", points: margins.filter(([, low, high]) => high > low) }], height: () => 130,
    keys: [...(chosen[B] ? [["s0", shortDate(chosen[B].date)] as const] : []), ...(chosen[A] ? [["s1", `${shortDate(chosen[A].date)}, compared`] as const] : []), ...(has("s2") ? [["s2", `other days that ${chosen[B] ? dayOf(time(chosen[B].date)) : "it"} is based on`] as const] : []), ...(has("s5") ? [["s5", "other days"] as const] : [])],
  };
}

const points = (share: number, stddev: number): string => `${share > 0 ? "+" : ""}${known(100 * share, 100 * stddev)} points`;

/** What a page of one night would show. */
function bodyOf(map: NightMap, layer: Layer): MapBody {
  return { kind: "map", region: map.region, depth: map.depth, layers: [layer], missing: map.missing, start: null, slots: null, finest_metres: map.finest_metres };
}

/** Whether a layer shows the users of zones, which the chart can follow. */
const isOfZones = ({ zones, measures }: Layer): boolean => zones !== null && countsUsers(measures[0]);

/** Why this page draws no map of a night, and where its release is shown. */
function absent({ date, folder, job, pruned }: Night): (string | Node)[] {
  if (pruned) return [`The map of ${shortDate(date)} was removed to save space. Its cost and its manifest are kept.`];
  return [`The release of ${shortDate(date)}, from sfumato ${job}, is shown on `, h("a", { href: `${folder}/index.html` }, "its own page"), ". This page draws heatmaps, and numbers by zone that this version of Sfumato published."];
}

/** What is shown: night B, the night A that it is compared with, and which of them or their change is on the map. */
class Timeline {
  private readonly nights: Night[];
  private readonly maps: NightMaps;
  private night: Night;
  private against = "before"; // a name in RELATIVE, or a date
  private shown = B;
  private zone: string | null = null; // the id of the zone whose users the chart shows: "" for all users, null before a map is shown
  private requests = 0;
  private charts = 0;
  private scale: Scale | null = null; // the longest so far: nights that are looked at in turn have the same colours
  private figure: MapFigure | null = null;
  private frame = ""; // the region of `figure`, and what a place without a cell means there
  private current: { layer: Layer; changes: Change[]; maps: (NightMap | null)[] } | null = null;
  private readonly chart: ChartFigure;
  private readonly pick = { night: h("select"), against: h("select") };
  private readonly chartPlace = h("div", { class: "nights" });
  private readonly mapPlace = h("div", { class: "map-place" });
  private readonly words = h("section", { class: "night-words", "aria-live": "polite" });
  private readonly kinds = h("div");
  private readonly zoneWords = h("p", { class: "quiet" });
  private readonly listed = h("section", { class: "listed" });
  private readonly showGeography: (figure: MapFigure) => void;

  constructor(view: PageView, root: HTMLElement, private readonly tools: Tools) {
    const body = view.body as TimelineBody;
    this.nights = body.nights;
    this.showGeography = geographyOf(view, tools);
    this.maps = new NightMaps(body.map_format);
    this.night = this.nights[this.nights.length - 1];
    this.readLink();
    const newest = [...this.nights].reverse();
    this.pick.night.append(...newest.map(({ date, map, job }) => h("option", { value: date }, shortDate(date) + (map ? "" : `, ${job}`))));
    this.pick.against.append(...RELATIVE.map(([name, , text]) => h("option", { value: name }, text)), ...newest.filter(({ map }) => map).map(({ date }) => h("option", { value: date }, shortDate(date))));
    this.pick.night.addEventListener("change", () => this.choose(this.nights.find(({ date }) => date === this.pick.night.value) ?? this.night));
    this.pick.against.addEventListener("change", () => this.choose(this.night, this.pick.against.value));
    const step = (by: number): void => this.choose(this.nights[clamp(this.nights.indexOf(this.night) + by, 0, this.nights.length - 1)]);
    const controls = h("div", { class: "controls" }, button("←", () => step(-1), { "aria-label": "The day before" }), h("label", {}, "Day ", this.pick.night), button("→", () => step(1), { "aria-label": "The day after" }),
      h("label", {}, "compared with ", this.pick.against), this.kinds, h("p", { class: "quiet" }, "Click or tap a bar to select a day; with Shift, the day to compare it with."), this.zoneWords);
    const panel = h("aside", { class: "panel", "aria-label": "The days" }, this.words, this.listed,
      h("section", { class: "pledge" }, h("p", {}, view.guarantee), h("p", {}, h("a", { href: "#report" }, "Read the full report"))));
    root.append(h("section", { class: "board when" }, this.chartPlace, controls), h("div", { class: "compared" }, this.mapPlace, panel));
    this.chart = new ChartFigure(this.chartPlace, nightsChart(this.nights, [null, this.night]), tools);
    this.chartPlace.style.flexBasis = `${clamp(110 + 46 * this.days(), 560, WIDE)}px`; // next to the controls as long as the window has room
    this.chart.onChoose((at, shift) => (shift ? this.choose(this.night, this.nights[at].date) : this.choose(this.nights[at])));
    tools.link.onChange(() => {
      this.readLink();
      void this.show();
    });
    this.listed.addEventListener("click", (event) => {
      const bar = (event.target as Element).closest("button")?.querySelector<HTMLElement>("[data-row]");
      if (bar) this.chooseZone(Number(bar.dataset.row));
    });
    tools.theme.onChange(() => tint(this.listed.querySelectorAll<HTMLElement>("[data-row]"), this.figure?.cells ?? null));
    tools.addButton("Picture", async () => {
      if (this.figure) offer(`${view.file_name}-${this.file()}.png`, await this.figure.toPNG(this.caption(view)));
    });
    tools.addButton("Table", () => {
      if (this.current && this.figure) offer(`${view.file_name}-${this.file()}.csv`, this.shown === CHANGE ? this.changesCsv() : layerCsv(this.figure, this.current.layer));
    });
    void this.show();
  }

  /** Night A, with which night B is compared. */
  private other(): Night | null {
    const relative = RELATIVE.find(([name]) => name === this.against);
    return relative ? earlier(this.nights, this.night, relative[1]) : (this.nights.find(({ date, map }) => date === this.against && map !== null) ?? null);
  }

  private days(): number {
    return (time(this.nights[this.nights.length - 1].date) - time(this.nights[0].date)) / DAY + 1;
  }

  private title(): string {
    const [a, b] = [this.other(), this.night];
    return this.shown === CHANGE && a ? `Change from ${shortDate(a.date)} to ${shortDate(b.date)}` : longDate((this.shown === A && a ? a : b).date);
  }

  private file(): string {
    const [a, b] = [this.other(), this.night];
    return this.shown === CHANGE && a ? `${a.date}-to-${b.date}` : (this.shown === A && a ? a : b).date;
  }

  private caption(view: PageView): Caption {
    const { notes, ...heads } = captionOf(view);
    return { ...heads, title: this.title(), listed: listedIn(this.listed), notes: [this.words.querySelector("p")?.textContent ?? "", ...notes] };
  }

  private readLink(): void {
    const { link } = this.tools;
    this.night = this.nights.find(({ date }) => date === link.get("night")) ?? this.nights.filter(({ map }) => map !== null).at(-1) ?? this.nights[this.nights.length - 1];
    const against = link.get("against") ?? "before";
    this.against = RELATIVE.some(([name]) => name === against) || this.nights.some(({ date, map }) => date === against && map !== null) ? against : "before";
    this.zone = link.get("zone");
    this.shown = link.get("show") === "change" ? CHANGE : link.get("show") === "a" ? A : B;
  }

  private choose(night: Night, against = this.against): void {
    this.night = night;
    this.against = against;
    const { link } = this.tools;
    link.set("night", night === this.nights[this.nights.length - 1] ? null : night.date);
    link.set("against", against === "before" ? null : against);
    const users = usersOf(night, this.unit);
    this.tools.say(`${longDate(night.date)}${users === null ? "" : `, ${users}`}`);
    void this.show();
  }

  /** Shows the users of a zone in the chart; of a row without a zone, those of all users. */
  private chooseZone(row: number): void {
    const layer = this.current?.layer;
    this.zone = (layer && isOfZones(layer) && layer.zones?.[row]?.[0]) || "";
    this.tools.link.set("zone", this.zone);
    void this.drawChart();
  }

  /** What a release calls its users, such as riders. */
  private get unit(): string {
    const measure = this.current?.layer.measures[0];
    return measure && countsUsers(measure) ? measure.unit : "users";
  }

  private async drawChart(): Promise<void> {
    const chosen = [this.other(), this.night];
    const id = this.zone;
    const mine = ++this.charts;
    const ofZone = id ? await this.maps.ofZone(id, this.nights) : [];
    if (mine !== this.charts) return; // something else was selected meanwhile
    const name = ofZone.find((one) => one !== null)?.name ?? null;
    if (id && name === null) { // no night has the zone of the link
      this.zone = "";
      this.tools.link.set("zone", null);
    }
    const counts = name === null ? this.nights.map(knownOf) : ofZone;
    this.chart.draw(nightsChart(this.nights, chosen, name, counts, this.unit));
    this.chart.setTip(this.nights.map(({ date }) => time(date)), (at) => {
      const night = this.nights[at];
      const { date, epsilon, job, map, pruned, safe } = night;
      const count = ofZone[at];
      const users = name === null ? usersOf(night, this.unit) : count && `${within(count.users, count.low, count.high)} ${this.unit} (${interval(count.low, count.high)}, 95%)`;
      return { x: time(date), y: Math.max(counts[at]?.users ?? 0, 0), value: longDate(date), margin: users ?? `${this.unit} unknown`, facts: [...(name === null ? [] : [["Zone", name] as const]), ["Budget", `ε ${significant(epsilon)}`], ["Job", map ? job : pruned ? `${job}, removed` : `${job}, on its own page`], ...(safe ? [] : [["Noise", "known source: not private"] as const])] };
    });
    const all = button(`Show all ${this.unit}`, () => this.chooseZone(-1), { class: "link" });
    if (name !== null) this.zoneWords.replaceChildren(`${name}: ${this.unit} by day, each with its own 95% interval. `, all);
    else this.zoneWords.textContent = this.current && isOfZones(this.current.layer) ? ZONE_HINT : "";
  }

  private showKind(kind: number): void {
    this.shown = kind;
    this.tools.link.set("show", kind === CHANGE ? "change" : kind === A ? "a" : null);
    void this.show().then(() => this.kinds.querySelector<HTMLElement>("input:checked")?.focus());
  }

  // ---------------------------------------------------------------- the map

  private async show(): Promise<void> {
    const mine = ++this.requests;
    const [a, b] = [this.other(), this.night];
    const isCompared = a?.job === "heatmap" && b.job === "heatmap"; // of zones, the command changes compares two nights
    if (!a || (this.shown === CHANGE && !isCompared)) this.shown = B;
    this.pick.night.value = b.date;
    this.pick.against.value = this.against;
    void this.drawChart();
    this.kinds.replaceChildren(choice("Map", a ? [shortDate(a.date), shortDate(b.date), ...(isCompared ? ["Change"] : [])] : [shortDate(b.date)], a ? this.shown : 0, (kind) => this.showKind(a ? kind : B)));
    const wanted = this.shown === A ? [a, null] : this.shown === B ? [null, b] : [a, b];
    const missing = wanted.find((night) => night && !night.map);
    if (missing) {
      this.refuse(...absent(missing));
      return;
    }
    try {
      const maps = await Promise.all(wanted.map((night) => (night ? this.maps.load(night) : null)));
      if (mine === this.requests) this.paint(maps);
    } catch (error) {
      if (mine === this.requests) this.refuse(error instanceof Error ? error.message : String(error));
    }
  }

  private paint(maps: (NightMap | null)[]): void {
    const [a, b] = maps;
    const one = b ?? a;
    if (!one) return;
    if (a && b && JSON.stringify(a.region) !== JSON.stringify(b.region)) {
      this.refuse("These two days cover different regions and cannot be compared.");
      return;
    }
    const changes = a && b ? compare(a, b) : [];
    const layer = a && b ? changeLayer(changes, this.title()) : one.layer;
    const figure = this.figureFor(one);
    this.current = { layer, changes, maps };
    for (const map of maps) {
      const scale = map?.layer.measures[0].scale;
      if (scale && (scale.unit !== this.scale?.unit || scale.high > this.scale.high)) this.scale = scale;
    }
    const measure = a && b || !this.scale ? layer.measures[0] : { ...layer.measures[0], scale: this.scale };
    figure.setLayer(layer, measure, a && b ? `Of the cells without hatching, at most ${percent(RATE)} are expected to result from noise and sampling error` : "");
    figure.setLabel(`Map: ${this.title()}`);
    const loose = a && b && (a.lower_bound || b.lower_bound);
    const found = changes.filter(({ changed }) => changed).length;
    const night = this.shown === A ? this.other() : this.night;
    this.words.replaceChildren(h("h2", {}, this.title()), ...(a && b
      ? [h("p", {}, found ? `Significant change in the share of all ${this.unit}: ${whole(found)} of ${plural(changes.length, "cell")}.` : `No significant change in the share of all ${this.unit} in any of ${plural(changes.length, "cell")}.`),
        h("p", { class: "quiet" }, `At most ${percent(RATE)} of ${found ? "these" : "the cells that this page lists"} are expected to be false positives, caused only by noise and sampling error (Benjamini-Hochberg; cells tested individually).${loose ? " The method states only lower bounds of its errors, so there may be more false positives." : ""}`)]
      : night ? this.nightWords(night) : []));
    this.list(one, layer, figure);
    if (isOfZones(layer)) { // the busiest zone's number is known far better than that of all users
      this.zone ??= (this.nights.length <= FEW && layer.zones?.[measure.listed[0]?.[0] ?? -1]?.[0]) || "";
      void this.drawChart();
    }
  }

  private nightWords(night: Night): HTMLElement[] {
    const users = usersOf(night, this.unit);
    const start = night.warm_start && !night.rests_on.length ? `, started from ${night.warm_start}` : "";
    return [h("p", {}, `${users === null ? "" : `About ${users}. `}ε ${significant(night.epsilon)}${night.delta ? `, δ ${night.delta.toExponential(0)}` : ""}.`),
      ...night.notes.map((note) => h("p", { class: "quiet" }, note)),
      h("p", {}, night.pruned ? h("a", { href: `${night.folder}/manifest.json` }, "Manifest of this day") : h("a", { href: `${night.folder}/index.html` }, "Full page of this day"), start)];
  }

  private refuse(...message: (string | Node)[]): void {
    this.current = null;
    this.figure = null;
    this.zoneWords.replaceChildren();
    this.mapPlace.replaceChildren(h("p", { class: "absent" }, ...message));
    this.words.replaceChildren(h("h2", {}, this.title()), ...this.nightWords(this.night));
    this.listed.replaceChildren();
  }

  private figureFor(map: NightMap): MapFigure {
    const frame = JSON.stringify([map.region, map.missing]);
    if (this.figure && this.frame === frame) return this.figure;
    this.frame = frame;
    this.mapPlace.replaceChildren();
    this.figure = new MapFigure(this.mapPlace, map.region, { label: "Map", finestMetres: map.finest_metres, missing: map.missing }, this.tools);
    this.figure.setTip((hit) => this.tip(hit));
    this.figure.onClick(({ row }) => this.current?.layer.zones && row >= 0 && this.chooseZone(row));
    this.showGeography(this.figure);
    return this.figure;
  }

  private tip(hit: Hit): TipWords | null {
    if (!this.current || !this.figure) return null;
    const { layer, changes, maps } = this.current;
    const map = maps[B] ?? maps[A];
    if (!map) return null;
    if (this.shown !== CHANGE) return cellWords(this.figure, bodyOf(map, layer), layer, layer.measures[0], hit);
    const change = changes[hit.row];
    if (!change) return null;
    const { before, after, difference, deviation, changed, q } = change;
    const at = (share: number, night: Night | null): string => `${percent(share, 2)} of all ${this.unit}${night === null || night.users === null ? "" : `, about ${significant(Math.max(share * night.users, 0), 2)}`}`;
    const side = 2 ** (map.depth - layer.level[hit.row]);
    const near = this.figure.nearest(hit.longitude, hit.latitude);
    return {
      value: changed ? capital(points(difference, deviation)) : "Not significant: within noise and sampling error", margin: `${interval(100 * (difference - Z * deviation), 100 * (difference + Z * deviation))} percentage points, 95% interval (pointwise)`,
      facts: [[shortDate(this.other()?.date ?? this.night.date), at(before, this.other())], [shortDate(this.night.date), at(after, this.night)], ["q-value", q === null ? "not tested: too few users in both" : q < 0.001 ? "under 0.001" : significant(q, 2)], ["Cell", `${metres(map.finest_metres[0] * side)} × ${metres(map.finest_metres[1] * side)}`],
        ...(near === null ? [] : [["Where", near] as [string, string]]), ["Position", place(hit.longitude, hit.latitude, Math.min(...map.finest_metres))]],
    };
  }

  /** Places that changed: between the two nights, or on the shown one against the number expected from earlier nights. */
  private list(map: NightMap, layer: Layer, figure: MapFigure): void {
    const [measure] = layer.measures;
    const { listed } = measure;
    figure.setOverlay(null);
    if (layer.shapes) {
      this.listed.replaceChildren(...(measure.listed_note ? [listOf(figure, bodyOf(map, layer), measure)] : []));
      return;
    }
    if (this.shown !== CHANGE) {
      this.listUnexpected((this.shown === A ? this.other() : this.night)?.changes ?? [], layer, figure);
      return;
    }
    if (!listed.length) {
      this.listed.replaceChildren();
      return;
    }
    const most = Math.max(...listed.map(([, difference]) => Math.abs(difference)));
    const items = listed.slice(0, LISTED).map(([row, difference, low, high]) => {
      const cell = figure.cells?.bounds(row);
      const [longitude, latitude] = cell ? [(cell.west + cell.east) / 2, (cell.south + cell.north) / 2] : [0, 0];
      const mark = h("i", { "data-row": row });
      mark.style.width = `${(100 * Math.abs(difference)) / most}%`;
      tint([mark], figure.cells);
      const item = button("", () => figure.goTo(row), { title: "Show on the map" });
      item.append(h("span", {}, this.placeOf(figure, longitude, latitude)), h("b", {}, `${points(difference, (high - low) / (2 * Z))}`), h("span", { class: "bar", "aria-hidden": "true" }, mark));
      return h("li", {}, item);
    });
    this.listed.replaceChildren(h("h2", {}, "Largest changes (95% sure)"), h("p", { class: "quiet" }, `Percentage points of all ${this.unit}, ordered by the end of the pointwise 95% interval that is nearer to zero.`), h("ol", { class: "places" }, items));
  }

  /** Where a place of a list is, in words: its coordinates distinguish the finest cells. */
  private placeOf(figure: MapFigure, longitude: number, latitude: number): string {
    return figure.nearest(longitude, latitude) ?? place(longitude, latitude, Math.min(...(this.current?.maps ?? []).flatMap((map) => map?.finest_metres ?? [])));
  }

  private listUnexpected(changes: PlaceChange[], layer: Layer, figure: MapFigure): void {
    if (!changes.length) {
      this.listed.replaceChildren();
      return;
    }
    const gain = ({ users, expected }: PlaceChange): number => users - expected;
    const sorted = [...changes].sort((one, two) => Math.abs(gain(two)) - Math.abs(gain(one)));
    const items = sorted.slice(0, LISTED).map((change) => {
      const row = rowOf(layer.cell_id, change.cell_ids[0]);
      const cell = row === null ? null : figure.cells?.bounds(row);
      const [longitude, latitude] = cell ? [(cell.west + cell.east) / 2, (cell.south + cell.north) / 2] : [0, 0];
      const stddev = (change.high - change.low) / (2 * Z);
      const mark = h("i");
      mark.style.width = `${(100 * Math.abs(gain(change))) / Math.max(Math.abs(gain(sorted[0])), 1e-12)}%`;
      mark.style.background = "var(--hot)";
      const item = button("", () => row !== null && figure.goTo(row), { title: "Show on the map" });
      item.append(h("span", {}, cell ? this.placeOf(figure, longitude, latitude) : change.cell_ids.join(" ")),
        h("b", {}, `${gain(change) > 0 ? "+" : ""}${Number(known(gain(change), stddev)) === 0 ? significant(gain(change), 1) : known(gain(change), stddev)} ${this.unit}`),
        h("span", { class: "wide-line" }, `${interval(Math.max(change.low, 0), change.high)} ${this.unit}; ${known(Math.max(change.expected, 0), stddev / 10)} expected`),
        h("span", { class: "bar", "aria-hidden": "true" }, mark));
      return h("li", {}, item);
    });
    const more = sorted.length > LISTED ? ` ${whole(sorted.length)} places in all; the full page of this day lists them.` : "";
    this.listed.replaceChildren(h("h2", {}, "Unlike earlier days"), h("p", { class: "quiet" }, `Users of each place, and the number expected from earlier days. The 95% intervals hold for all places at once (simultaneous).${more}`), h("ol", { class: "places" }, items));
  }

  private changesCsv(): string {
    const { layer, changes } = this.current ?? { layer: null, changes: [] };
    return csv(["cell_id", "level", "x", "y", "share_before", "share_after", "difference", "stddev", "z", "q", "changed"],
      changes.map(({ id, before, after, difference, deviation, z, q, changed }, i) => [id, layer?.level[i] ?? null, layer?.x[i] ?? null, layer?.y[i] ?? null, before, after, difference, deviation, z, q, changed]));
  }
}

export const showTimeline: Product = (view: PageView, root: HTMLElement, tools: Tools) => {
  new Timeline(view, root, tools);
};
