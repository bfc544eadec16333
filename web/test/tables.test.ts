import { beforeEach, describe, expect, it } from "vitest";
import { compareCells, makeSortable, numberOf } from "../src/tables";

describe("numbers in texts", () => {
  it.each([["3.69e-11 (se 3e-13)", 3.69e-11], ["1,234.5", 1234.5], ["\u22120.5", -0.5], ["2.5%", 2.5], [".5", 0.5], ["-", NaN], ["", NaN], ["adaptive", NaN]])("%s", (text, value) => {
    expect(numberOf(text)).toEqual(value);
  });
  it("cells without a number come last either way", () => {
    for (const down of [false, true]) expect(["2", "-", "10", "1"].sort((a, b) => compareCells(a, b, true, down)).at(-1)).toBe("-");
    expect(["10", "9"].sort((a, b) => compareCells(a, b, true, false))).toEqual(["9", "10"]);
  });
});

describe("a table", () => {
  beforeEach(() => {
    const rows = [["b", "10"], ["a", "9"], ["c", "-"]];
    document.body.replaceChildren();
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const [name, kind] of [["method", ""], ["mse", "number"]]) {
      const cell = document.createElement("th");
      cell.textContent = name;
      cell.className = kind;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of rows) {
      const made = body.insertRow();
      for (const text of row) made.insertCell().textContent = text;
    }
    document.body.append(table);
    makeSortable(document);
  });
  const firsts = (): string[] => [...document.querySelectorAll("tbody tr")].map((row) => row.children[0].textContent);

  it("is sorted by a column, up and down", () => {
    const [method, mse] = [...document.querySelectorAll<HTMLButtonElement>("th button")];
    mse.click();
    expect(firsts()).toEqual(["a", "b", "c"]);
    mse.click();
    expect(firsts()).toEqual(["b", "a", "c"]);
    expect(mse.parentElement?.getAttribute("aria-sort")).toBe("descending");
    method.click();
    expect(firsts()).toEqual(["a", "b", "c"]);
    expect(mse.parentElement?.getAttribute("aria-sort")).toBe(null);
  });
});
