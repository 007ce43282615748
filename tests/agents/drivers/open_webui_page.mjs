// Asks Open WebUI's own page in Chromium, and prints the answer as the page shows it.
//
// open_webui_page.mjs URL TOKEN PROMPT

import { launch } from "../../e2e/chromium.mjs";

const [url, token, prompt] = process.argv.slice(2);
const browser = await launch();
try {
  const page = await browser.newPage();
  // As after its form for signing in.
  await page.addInitScript((kept) => localStorage.setItem("token", kept), token);
  // It tells a new user what is new.
  await page.addLocatorHandler(page.getByRole("dialog"), (dialog) => dialog.getByRole("button", { name: /let.s go/i }).click());
  await page.goto(url);
  const input = page.locator("#chat-input");
  await input.click();
  await input.pressSequentially(prompt);
  await page.keyboard.press("Enter");
  const answer = page.locator(".chat-assistant").last();
  // What the page shows below an answer once that is whole.
  const end = page.getByLabel("Regenerate").last();
  for (let shown = "", isWhole = false; !isWhole; await page.waitForTimeout(50)) {
    isWhole = await end.isVisible();
    const text = (await answer.count()) > 0 ? await answer.innerText() : "";
    if (text !== shown) console.log(text);
    shown = text;
  }
} finally {
  await browser.close();
}
