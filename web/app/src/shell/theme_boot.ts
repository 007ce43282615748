// Runs before the first paint, so that a chosen theme does not flash in. Its own small script,
// because the pages' policy allows none inside the HTML.

import { applyTheme, keptTheme } from "./theme.js";

applyTheme(keptTheme());
