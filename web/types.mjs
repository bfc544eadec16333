// Makes src/views.ts from views.schema.json, which `make web` writes from schemas/views.
import { readFileSync, writeFileSync } from "node:fs";
import { compile } from "json-schema-to-typescript";

const schema = JSON.parse(readFileSync(new URL("views.schema.json", import.meta.url), "utf8"));
/** Fields get no type names of their own, fields with defaults are always there, and tuples are written as the tool reads them. */
function prepare(node, isType = true) {
  if (node === null || typeof node !== "object") return;
  if (node.properties) node.required = Object.keys(node.properties);
  if (!isType) delete node.title;
  if (node.prefixItems) [node.items, node.prefixItems] = [node.prefixItems, undefined];
  else if (node.minItems) delete node.minItems;
  for (const [key, value] of Object.entries(node)) {
    if (key === "$defs") Object.values(value).forEach((one) => prepare(one));
    else if (key === "properties") Object.values(value).forEach((one) => prepare(one, false));
    else if (typeof value === "object") prepare(value, false);
  }
}
prepare(schema);
const options = { bannerComment: "// Made by `npm run types` from schemas/views. Do not edit.", additionalProperties: false, unreachableDefinitions: true, style: { printWidth: 120 } };
const types = (await compile(schema, "PageView", options)).replace(/(\/\*\*\n| \*\n) \* This interface was referenced by [^]*? \*\/\n/g, (_, start) => (start.startsWith("/") ? "" : " */\n"));
writeFileSync(new URL("src/views.ts", import.meta.url), types);
