// The report's tables: a click on a column's name sorts the rows by it.
import { button } from "./dom";

/** The number that a text begins with, such as 3.7e-11 of `3.7e-11 (se 2e-13)`; NaN where it begins with none. */
export function numberOf(text: string): number {
  const found = /^[\u2212+-]?[\d,]*\.?\d+(e[+-]?\d+)?/i.exec(text.trim());
  return found ? Number(found[0].replaceAll(",", "").replace("\u2212", "-")) : NaN;
}

/** Compares texts by number where a column holds numbers; a cell without one comes last either way. */
export function compareCells(a: string, b: string, numeric: boolean, down: boolean): number {
  const way = down ? -1 : 1;
  if (!numeric) return way * a.localeCompare(b, "en", { numeric: true });
  const [x, y] = [numberOf(a), numberOf(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
  return way * (x - y);
}

/** Lets a reader sort every table of more than two rows by each of its columns. */
export function makeSortable(root: ParentNode): void {
  for (const table of root.querySelectorAll("table")) {
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
    const body = table.tBodies[0];
    if (!body || body.rows.length < 3) continue;
    heads.forEach((head, column) => {
      const numeric = head.classList.contains("number");
      const sort = (): void => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const one of heads) one.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const text = (row: HTMLTableRowElement): string => row.cells[column].textContent;
        body.append(...[...body.rows].sort((a, b) => compareCells(text(a), text(b), numeric, down)));
      };
      const name = head.textContent;
      head.replaceChildren(button(name, sort, { title: `Sort by ${name}` }));
    });
  }
}
