// The page /lab: header, and what lab.tsx mounts.

import { render } from "preact";
import { PageHeader } from "../shell/header.js";
import "../shell/base.css";
import "./lab.css";
import "./live/live.css";
import "./world/world.css";
import { mountLab } from "./lab.js";

const app = document.getElementById("app");
if (app === null) throw new Error("the page has no #app");
render(
  <>
    <PageHeader current="lab" />
    <main id="page"></main>
  </>,
  app,
);
const page = document.getElementById("page");
if (page !== null) mountLab(page);
