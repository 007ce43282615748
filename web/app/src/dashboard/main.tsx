// The page /dashboard: header, and what dashboard.tsx mounts.

import { render } from "preact";
import { PageHeader } from "../shell/header.js";
import "../shell/base.css";
import "./dashboard.css";
import { mountDashboard } from "./dashboard.js";

const app = document.getElementById("app");
if (app === null) throw new Error("the page has no #app");
render(
  <>
    <PageHeader current="dashboard" />
    <main id="page"></main>
  </>,
  app,
);
const page = document.getElementById("page");
if (page !== null) mountDashboard(page);
