// Made by `npm run types` from schemas/views. Do not edit.

/**
 * A whole page.
 *
 * Attributes:
 *     title: what the page is, such as `Private heatmap`.
 *     heading: the operator's title, above the headline; None without one.
 *     headline: the first line of the first screen.
 *     place: the region's name, or its middle in degrees; None without a map.
 *     period: days of the records, in words; None if they are not stated.
 *     file_name: of the files that a reader saves, without what follows its dot.
 *     description: one sentence for search engines and link previews.
 *     job: the command that made the release.
 *     chips: two to four facts next to the title.
 *     guarantee: two sentences.
 *     alarm: a warning if the release used a known seed; None for a secret key.
 *     problems: gaps and warnings of the manifest.
 *     picture: file name of the preview picture; None without one.
 *     timeline: relative link to the timeline that contains the release; None if unknown.
 *     sections: the report.
 *     manifest: the published manifest, without the list of files.
 *     tiles: URL pattern of a tile server that the operator named; None without.
 */
export interface PageView {
  title: string;
  heading: string | null;
  headline: string;
  place: string | null;
  period: string | null;
  file_name: string;
  description: string;
  job: string;
  release_id: string;
  created: string;
  chips: Fact[];
  guarantee: string;
  alarm: string | null;
  problems: string[];
  files: FileLink[];
  picture: string | null;
  timeline: string | null;
  sections: Section[];
  manifest: {
    [k: string]: unknown;
  };
  basemap: Basemap | null;
  tiles: string | null;
  body: MapBody | BarsBody | CurveBody | MomentsBody | RangesBody | FlowsBody | TimelineBody;
}
/**
 * A term and its text.
 */
export interface Fact {
  term: string;
  text: string;
}
/**
 * A file that lies next to the page.
 */
export interface FileLink {
  name: string;
  description: string;
}
/**
 * A part of the report under the first screen. It is plain HTML and needs no script.
 */
export interface Section {
  title: string;
  lead: string | null;
  paragraphs: string[];
  facts: Fact[];
  table: Table | null;
  folded: boolean;
}
/**
 * A table of texts. `numeric` marks the columns that hold numbers; a reader can sort by each column.
 *
 * `links` holds the relative address that each row's first text leads to; it is empty where they lead nowhere.
 */
export interface Table {
  title: string;
  heads: string[];
  rows: string[][];
  numeric: boolean[];
  links: string[];
}
/**
 * Geography under and over the cells, clipped to the region and simplified.
 *
 * Attributes:
 *     source: what to name as its source.
 *     water, land: areas under the cells; each is its outer ring and then its holes. Shores are drawn over the cells.
 *     lines: streets, borders and other lines, over the cells.
 *     zones: named polygons, drawn as outlines over the cells.
 *     places: names.
 */
export interface Basemap {
  source: string;
  water: [number, number][][][];
  land: [number, number][][][];
  lines: [number, number][][];
  zones: Zone[];
  places: Place[];
}
/**
 * A named area of the basemap: its rings, those of its holes among them (even-odd).
 */
export interface Zone {
  name: string;
  rings: [number, number][][];
}
/**
 * A name on the basemap. `rank` 0 is the most important.
 */
export interface Place {
  name: string;
  longitude: number;
  latitude: number;
  rank: number;
}
/**
 * A map of cells: heatmap, rates, counted cells, hot spots, means by cell, changes.
 *
 * Attributes:
 *     slots: maps of every slot of time; None without slots.
 *     layers: coarse to fine or first to last; the last is shown first.
 *     missing: what a place without a cell means, in one sentence; None where cells cover the region.
 *     finest_metres: width and height of the finest cell.
 *     start: what is shown first; None for the whole region.
 */
export interface MapBody {
  kind: "map";
  region: Bounds;
  depth: number;
  layers: Layer[];
  missing: string | null;
  /**
   * @minItems 2
   * @maxItems 2
   */
  finest_metres: [number, number];
  start: Bounds | null;
  slots: TimeSlots | null;
}
/**
 * A region in degrees.
 */
export interface Bounds {
  west: number;
  south: number;
  east: number;
  north: number;
}
/**
 * Cells of a quadtree, painted in the order of their levels, or named polygons.
 *
 * Attributes:
 *     title: for the control that selects the layer, such as `Published map` or `Level 5`.
 *     note: one sentence on it.
 *     level, x, y: position of each cell: column x from the west, row y from the north, of 2^level a side. Levels
 *         ascend. A cell's number is about what its descendants in the layer leave over.
 *     area: the finest cells that it owns, as a share of its own area in 0..1.
 *     cell_id: names such as r213.
 *     shapes: the rings of each polygon, those of its holes among them (even-odd); None for cells of the quadtree. A
 *         polygon's level, x and y are 0, so that `area` is its share of the region.
 *     named: whether cell_id holds names for people, to be written on the map.
 */
export interface Layer {
  title: string;
  note: string;
  level: number[];
  x: number[];
  y: number[];
  area: number[];
  cell_id: string[];
  measures: Measure[];
  shapes: [number, number][][][] | null;
  named: boolean;
}
/**
 * One number per cell with its 95% interval.
 *
 * Attributes:
 *     name: for the control that selects it, such as `Users` or `Rate of infected`.
 *     kind: `count`: users of a cell, coloured by users per km²; `rate`: shares in 0..1; `value`: in `unit`;
 *         `change`: a difference of two counts or rates.
 *     unit: of the values; empty for shares.
 *     value, low, high: one per cell; the estimate and the ends of its interval.
 *     uncertain: one per cell. A count that noise could explain: its cell has no colour, of a count or of a rate. Of
 *         other kinds an interval that leaves the colour open: drawn hatched.
 *     smooth: whether uncertain counts follow their surroundings. Then all cells have the colour of their count.
 *     scale: of the colours.
 *     listed: cells for the list of the highest (rows of the layer), in the order of what is certainly high, with an
 *         interval that holds for all cells at once where the method has one; [row, value, low, high].
 *     listed_note: one sentence on how the list was chosen.
 */
export interface Measure {
  name: string;
  kind: "count" | "rate" | "value" | "change";
  unit: string;
  value: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  uncertain: boolean[];
  smooth: boolean;
  scale: Scale;
  listed: [number, number, number, number][];
  listed_note: string;
}
/**
 * A scale of colours.
 *
 * Attributes:
 *     kind: `log`: colour position log(1 + value / knee) / log(1 + high / knee), from 0 to `high`; `linear`: from
 *         `low` to `high`; `diverging`: linear, with the middle colour at 0 and low = -high.
 *     low, high: the values of the first and last colour.
 *     knee: of the log scale, in the value's unit; None for the others.
 *     unit: of the values, such as `users per km²`.
 *     ticks: (value, text) pairs for the legend, ascending. A text starts with ≥ or ≤ where values lie beyond.
 */
export interface Scale {
  kind: "log" | "linear" | "diverging";
  low: number;
  high: number;
  knee: number | null;
  unit: string;
  ticks: [number, string][];
}
/**
 * Maps of every slot of time, next to the map of all slots.
 *
 * Attributes:
 *     title: of the control, such as `By hour`.
 *     note: one sentence on what a slot's map counts, with the time zone.
 *     names: of the slots, such as `08-09 h`.
 *     ticks: of an axis of slots: the slot, or the number of slots for the end, and its text.
 *     layer: its cells, with one measure for each slot.
 *     region: users of the whole region in each slot: the estimate and the ends of its 95% interval.
 */
export interface TimeSlots {
  title: string;
  note: string;
  names: string[];
  ticks: [number, string][];
  layer: Layer;
  region: [number, number, number][];
}
/**
 * Ranked items, groups or prefixes.
 */
export interface BarsBody {
  kind: "bars";
  unit: string;
  noun: string;
  explanation: string;
  bars: Bar[];
  reference: number | null;
}
/**
 * A ranked item, group or prefix. `parent` is the row of the prefix that it extends, -1 for none.
 */
export interface Bar {
  name: string;
  value: number;
  low: number;
  high: number;
  share: number | null;
  parent: number;
  level: number;
  cut: boolean;
  users: number | null;
}
/**
 * A distribution function with its 95% band, quantiles and ranges of values.
 *
 * Attributes:
 *     value, share, low, high: points of the function, ascending, and its band.
 *     points: the only values at which the function was queried, drawn as dots; empty where it is known everywhere.
 *     histogram: published counts of intervals of equal width, ascending. An absent interval has too few users.
 *     hidden: the largest number of users that an absent interval can have; None where there is no histogram.
 *     note: one sentence on the accuracy.
 */
export interface CurveBody {
  kind: "curve";
  column: string;
  value: number[];
  share: number[];
  low: number[];
  high: number[];
  quantiles: QuantileRow[];
  ranges: RangeRow[];
  points: number[];
  histogram: RangeRow[];
  hidden: number | null;
  note: string;
}
/**
 * A quantile: `share` of the users lie below `value`, which lies in low..high at 95%.
 */
export interface QuantileRow {
  share: number;
  value: number;
  low: number;
  high: number;
}
/**
 * Users with a value from `low` to below `high`, with their 95% interval.
 */
export interface RangeRow {
  low: number;
  high: number;
  users: number;
  users_low: number;
  users_high: number;
}
/**
 * Statistics of all users, of groups or cells, and the bits that they were computed from.
 *
 * Attributes:
 *     limits: the least and the greatest value that counts.
 *     deviation: of the values, the square root of their variance; None where no variance was estimated.
 *     reading: what the interval of the statistic of all users allows for, in a sentence or two.
 *     bits: empty where a trusted curator added up the values.
 */
export interface MomentsBody {
  kind: "moments";
  column: string;
  /**
   * @minItems 2
   * @maxItems 2
   */
  limits: [number, number];
  deviation: number | null;
  statistics: StatisticRow[];
  reading: string;
  groups: BarsBody[];
  map: MapBody | null;
  bits: BitRow[];
  bit_texts: BitTexts;
}
/**
 * A statistic of all users with its 95% interval, written with the digits that are known.
 */
export interface StatisticRow {
  name: string;
  value: number;
  low: number;
  high: number;
  text: string;
  range: string;
}
/**
 * A bit: its place value, share of users with it set, interval, and whether it was dropped.
 *
 * Attributes:
 *     quantity: the column or function of columns that the bits encode.
 *     share, low, high: noise may move them outside 0..1; None where nothing is known.
 *     dropped: probably empty.
 */
export interface BitRow {
  quantity: string;
  place: string;
  share: number | null;
  low: number | null;
  high: number | null;
  reports: number;
  dropped: boolean;
}
/**
 * Texts of the chart of bits: for bits of values, or for answers on thresholds.
 *
 * Attributes:
 *     title, about: above the chart; about is a sentence or two.
 *     share: what a bar's height is.
 *     place: what its place is, before the name of the quantity.
 */
export interface BitTexts {
  title: string;
  about: string;
  share: string;
  place: string;
}
/**
 * A model of range queries: its own arrays, so that the page answers any square.
 *
 * Attributes:
 *     sizes_metres: the side lengths the model was made for, least and largest.
 *     start: x, y of the centre in degrees and side in metres of the square that is shown first.
 *     model: arrays and numbers of the model in JSON, by the model's kind.
 *     background: a coarse map of the model's own answers.
 */
export interface RangesBody {
  kind: "ranges";
  region: Bounds;
  /**
   * @minItems 2
   * @maxItems 2
   */
  sizes_metres: [number, number];
  /**
   * @minItems 3
   * @maxItems 3
   */
  start: [number, number, number];
  model: {
    [k: string]: unknown;
  };
  background: MapBody;
}
/**
 * Flows: arcs on a map of where trips begin and end, and a matrix.
 *
 * Attributes:
 *     map: where trips begin, and where they end.
 *     flows: those that the page can show.
 *     listed: how many flows the release lists.
 *     matrix: of coarse cells; None for zones.
 *     reading: one sentence on the intervals.
 */
export interface FlowsBody {
  kind: "flows";
  map: MapBody;
  flows: FlowTable;
  listed: number;
  matrix: FlowMatrix | null;
  reading: string;
}
/**
 * Flows, largest first: columns of equal length.
 *
 * Attributes:
 *     level: of both cells of a flow; 0 for zones.
 *     origin_x, origin_y, destination_x, destination_y: columns from the west and rows from the north, of 2^level. Of
 *         zones x is the row in the map's layer, and y is 0.
 *     trips, low, high: the estimate and the ends of its 95% interval.
 *     centres: longitude and latitude of a point in each zone, by the rows of the map's layer; None for cells.
 */
export interface FlowTable {
  level: number[];
  origin_x: number[];
  origin_y: number[];
  destination_x: number[];
  destination_y: number[];
  trips: number[];
  low: number[];
  high: number[];
  centres: [number, number][] | null;
}
/**
 * Trips between coarse cells.
 *
 * Attributes:
 *     level: of the cells.
 *     x, y: of each cell, as in FlowTable.
 *     trips, low, high: one row an origin, one column a destination; unbiased, so that trips may be below 0.
 */
export interface FlowMatrix {
  level: number;
  x: number[];
  y: number[];
  trips: number[][];
  low: number[][];
  high: number[][];
}
/**
 * Nightly releases: spending, one night's map, the change between two nights.
 */
export interface TimelineBody {
  kind: "timeline";
  map_format: number;
  nights: Night[];
  spending: Spending[];
}
/**
 * A dated release of a timeline; see `schemas.timeline.DatedRelease`.
 *
 * Attributes:
 *     rests_on: first and last days of the periods on whose answers its estimate is based; empty for only its own.
 */
export interface Night {
  date: string;
  release_id: string;
  folder: string;
  job: string;
  epsilon: number;
  delta: number;
  users: number | null;
  users_stddev: number | null;
  warm_start: string | null;
  map: string | null;
  safe: boolean;
  pruned: boolean;
  notes: string[];
  rests_on: [string, string][];
  changes: PlaceChange[];
}
/**
 * A place whose number of users on a night differs from the expectation of earlier nights.
 *
 * Attributes:
 *     cell_ids: adjacent cells of the quadtree, such as r0213.
 *     users: estimated users on the night.
 *     low, high: ends of the 95% interval of `users`, which holds for all places at once.
 *     expected: expected users, from earlier nights.
 *
 * Raises:
 *     ValueError: a value is out of range.
 */
export interface PlaceChange {
  cell_ids: string[];
  users: number;
  low: number;
  high: number;
  expected: number;
}
/**
 * One of the ledger's limits, and the spending under it.
 *
 * Attributes:
 *     epsilon, delta: the limits for the data of any `days` consecutive days.
 *     days: length of the window.
 *     spent: (date, epsilon spent in the window that ends on that day on the most queried user), in order of dates.
 *
 * Raises:
 *     ValueError: a value is out of range.
 */
export interface Spending {
  epsilon: number;
  delta: number;
  days: number;
  spent: [string, number][];
}
/**
 * Texts of the chart of bits: for bits of values, or for answers on thresholds.
 *
 * Attributes:
 *     title, about: above the chart; about is a sentence or two.
 *     share: what a bar's height is.
 *     place: what its place is, before the name of the quantity.
 */
export interface BitTexts1 {
  title: string;
  about: string;
  share: string;
  place: string;
}
/**
 * One night's map, in a script that the timeline's page loads when its date is selected.
 *
 * Attributes:
 *     format: of the file; a page shows only maps of its own format.
 *     layer: the published cells with one measure, `Users`; fine cells may be added up.
 *     users: one per cell: estimated without shrinkage where the release has that, so that differences are unbiased.
 *     stddev: one per cell: standard deviation of the error of `users`.
 *     measured: one per cell: level of the node around it that the last sub-query measured. Above the cell's own an
 *         earlier sub-query measured it, whose noise decided where to look again: such a cell is biased.
 *     lower_bound: whether the method states only a lower bound of these deviations.
 *     noisy_sums: how many sums with a noise of their own were added up.
 */
export interface NightMap {
  format: number;
  date: string;
  region: Bounds;
  depth: number;
  /**
   * @minItems 2
   * @maxItems 2
   */
  finest_metres: [number, number];
  layer: Layer;
  users: number[];
  stddev: number[];
  measured: number[];
  lower_bound: boolean;
  noisy_sums: number;
}
