// The worker's entry: WebTransport off the page's thread, so that a busy page loses nothing.

import type { WebTransportConstructor } from "./connection.js";
import { type News, type Order, type Port, serve } from "./service.js";

const scope = globalThis as unknown as Port<Order, News> & { WebTransport?: WebTransportConstructor };
serve(scope, scope.WebTransport);
