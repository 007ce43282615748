// As `npm create vite` leaves it, with the app usable from any folder.
import { defineConfig } from "vite";

export default defineConfig({ base: "./", logLevel: "warn" });
