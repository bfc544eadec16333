// Bundles the client of two servers into build/client, or another folder: a package that an app installs. Pages do not contain it.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = process.argv[2] ?? new URL("../build/client", import.meta.url).pathname;
await build({
  entryPoints: ["src/client/index.ts"], outfile: `${out}/client.js`, bundle: true, format: "esm", platform: "browser",
  target: ["chrome100", "firefox102", "safari16", "node20"], charset: "utf8", legalComments: "linked", logLevel: "warning",
});
const [, version] = /^version = "(.*)"$/m.exec(readFileSync(new URL("../pyproject.toml", import.meta.url), "utf8"));
const about = { name: "sfumato-client", version, license: "Apache-2.0", type: "module", main: "client.js", types: "types/index.d.ts" };
writeFileSync(`${out}/package.json`, `${JSON.stringify(about, null, 2)}\n`);
