// Drives the console in headless Chromium: `node check.mjs CHECK BASE [JSON]`, prints one line of JSON.
//
// Every check fails on an error in the page, a message about the content security policy, or a request that leaves the
// origin. tests/console calls it and judges what it prints.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const [check, base, text = "{}"] = process.argv.slice(2);
const given = JSON.parse(text);
const faults = [];

async function openPage(browser, { width = 1280, height = 900, dark = false, mayFail = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", httpCredentials: given.login });
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const isRefused = mayFail && message.text().startsWith("Failed to load resource");
    if (["error", "warning"].includes(message.type()) && !isRefused) faults.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(`${base}/`)) faults.push(`request to ${request.url()}`);
  });
  page.setDefaultTimeout(20000);
  return page;
}

const show = (page, path, selector) =>
  page.goto(base + path, { waitUntil: "domcontentloaded" }).then(() => page.waitForSelector(selector));

const checks = {
  // The files of a partition with their resident pages, as drawn.
  async files(browser) {
    const page = await openPage(browser);
    await show(page, given.path, "#files svg");
    return page.$$eval("#files tbody tr", (rows) =>
      rows.map((row) => {
        const bars = row.querySelector("svg");
        return { name: row.querySelector("code").textContent, resident: Number(bars?.dataset.resident ?? 0), pages: Number(bars?.dataset.pages ?? 0),
          cold: [...(bars?.querySelectorAll("rect.c") ?? [])].reduce((sum, rect) => sum + Number(rect.getAttribute("width")), 0) };
      }));
  },

  // The pages of each lookup in the order of access, as numbered.
  async explain(browser) {
    const page = await openPage(browser);
    await show(page, given.path, "#lookups .pages");
    return page.$$eval(".lookup", (lookups) =>
      lookups.map((lookup) => {
        const touched = [...lookup.querySelectorAll("[data-order]")].sort((a, b) => a.dataset.order - b.dataset.order);
        return { index: lookup.dataset.index, search: lookup.dataset.search, pages: touched.map((cell) => Number(cell.dataset.page)),
          missing: touched.filter((cell) => cell.dataset.missing === "true").map((cell) => Number(cell.dataset.page)) };
      }));
  },

  // The time until the rows of the list are in the page, from the start of the navigation; then the next page and a filter.
  async topics(browser) {
    const page = await openPage(browser);
    await show(page, "/ui/topics", "#topics tbody tr");
    const rows = await page.$$eval("#topics tbody tr", (found) => found.length);
    await page.goto(`${base}/ui/topics`, { waitUntil: "commit" });
    const milliseconds = await page.evaluate(() => new Promise((resolve) => {
      const look = () => (document.querySelector("#topics tbody tr") ? resolve(performance.now()) : requestAnimationFrame(look));
      look();
    }));
    await page.getByRole("button", { name: "Next" }).click();
    await page.waitForFunction(() => document.querySelector("#topics tbody a")?.textContent !== "topic-00000");
    const second = await page.textContent("#topics tbody a");
    await page.getByLabel("Filter by name").fill("09999");
    await page.waitForFunction(() => document.querySelectorAll("#topics tbody tr").length === 1);
    return { rows, milliseconds, second, filtered: await page.textContent("#topics tbody a") };
  },

  // A large value: the longest time in which the page did not answer, and how much of the value is in it.
  async large(browser) {
    const page = await openPage(browser);
    await page.addInitScript(() => {
      globalThis.longest = 0;
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) globalThis.longest = Math.max(globalThis.longest, entry.duration);
      }).observe({ entryTypes: ["longtask"] });
    });
    await show(page, given.list, "#records tbody tr");
    const listed = await page.evaluate(() => document.body.innerText.length);
    await page.click("#records tbody a");
    await page.waitForSelector("#value");
    const first = await page.textContent("#value");
    await page.getByRole("button", { name: "Next" }).click();
    await page.waitForFunction((was) => document.querySelector("#value")?.textContent !== was, first);
    const second = await page.textContent("#value");
    return { listed, first: first.length, second: second.slice(0, 64), longest: await page.evaluate(() => globalThis.longest) };
  },

  // The records as shown: offset, key, value; whether the value is in hexadecimal digits.
  async records(browser) {
    const page = await openPage(browser);
    await show(page, given.path, "#records tbody tr");
    return page.$$eval("#records tbody tr", (rows) =>
      rows.map((row) => [Number(row.cells[0].textContent), row.cells[2].textContent, row.cells[3].textContent, row.cells[3].querySelector("[data-hex]") !== null]));
  },

  // Follow: records that are produced while the page is open appear in it.
  async follow(browser) {
    const page = await openPage(browser);
    await show(page, given.path, "#records tbody tr");
    await page.getByLabel("follow").check();
    console.error("following");
    await page.waitForFunction((value) => document.querySelector("#records")?.textContent.includes(value), given.value);
    return page.textContent("#records tbody a");
  },

  // All views, narrow and wide, light and dark: no violation that axe finds, and nothing wider than the window.
  async views(browser) {
    const found = [];
    for (const [path, selector, name] of given.views) {
      for (const [width, dark] of [[1280, false], [1280, true], [390, false], [390, true]]) {
        const page = await openPage(browser, { width, dark, mayFail: path.includes("missing") });
        await show(page, path, selector);
        await page.waitForFunction(() => document.querySelector(".strip .good") !== null);
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
        found.push(...violations.map((each) => `${path} ${width} ${dark ? "dark" : "light"}: ${each.id}: ${each.nodes[0].html.slice(0, 200)} ${each.nodes[0].failureSummary?.slice(0, 300)}`));
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        if (overflow > 0) found.push(`${path} ${width}: ${overflow} px too wide`);
        if (given.pictures && name && !dark && width === 1280) await page.screenshot({ path: `${given.pictures}/console-${name}.png` });
        await page.context().close();
      }
    }
    return found;
  },

  // The keyboard alone: skip to the content, sort, filter, open a topic, go on to Explain, and back.
  async keyboard(browser) {
    const page = await openPage(browser);
    await show(page, "/ui/topics", "#topics tbody tr");
    const focused = () => page.evaluate(() => document.activeElement?.textContent?.trim() || document.activeElement?.getAttribute("aria-label") || document.activeElement?.id);
    const tabTo = async (wanted) => {
      for (let count = 0; count < 60; count += 1) {
        await page.keyboard.press("Tab");
        if ((await focused())?.startsWith(wanted)) return;
      }
      throw new Error(`no way to ${wanted} by Tab`);
    };
    await tabTo("Skip");
    await page.keyboard.press("Enter");
    const skipped = await page.evaluate(() => document.activeElement.id);
    await tabTo("records");
    await page.keyboard.press("Enter");
    await page.waitForSelector('th[aria-sort="descending"]');
    await tabTo(given.topic);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#files");
    const title = await page.title();
    await tabTo("Explain a fetch");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#lookups");
    await page.goBack();
    await page.waitForSelector("#files");
    return { skipped, title, at: new URL(page.url()).pathname };
  },

  // The tour: explain, read, explain again; returns what it says.
  async tour(browser) {
    const page = await openPage(browser, { mayFail: true });
    await show(page, "/ui/tour", "#evicted b");
    await page.getByRole("button", { name: "Explain", exact: true }).click();
    await page.waitForSelector(".lookup");
    const missing = await page.$$eval('[data-search="warm"] [data-missing="true"]', (cells) => cells.length);
    if (given.pictures) await page.screenshot({ path: `${given.pictures}/console-tour.png`, fullPage: true });
    await page.getByRole("button", { name: "Read 5 records" }).click();
    const counted = await page.textContent("#counted");
    await page.getByRole("button", { name: "Explain again" }).click();
    await page.waitForFunction(() => document.querySelectorAll("#verdict").length === 2);
    const left = await page.$$eval("ol.steps > li:last-child [data-search='warm'] [data-missing='true']", (cells) => cells.length);
    return { missing, counted, left };
  },

  // A change with its confirmation: delete a topic.
  async remove(browser) {
    const page = await openPage(browser);
    await show(page, `/ui/topics/${given.topic}`, "main .danger");
    await page.getByRole("button", { name: "Delete…" }).click();
    const dialog = page.getByRole("dialog", { name: "Delete the topic" });
    const warning = await dialog.locator("p").first().textContent();
    const button = dialog.getByRole("button", { name: "Delete the topic" });
    const wasEnabled = await button.isEnabled();
    await dialog.getByLabel(/Type/).fill(given.topic);
    await button.click();
    await page.waitForURL("**/ui/topics");
    return { warning, wasEnabled };
  },

  // A cluster: what the strip and Health say.
  async cluster(browser) {
    const page = await openPage(browser, { mayFail: true });
    await show(page, "/ui/health", "#alerts, #no-alerts");
    if (given.alert) await page.waitForFunction((name) => document.querySelector("#alerts")?.textContent.includes(name), given.alert);
    const strip = await page.textContent(".strip");
    const alerts = await page.$$eval("#alerts li", (items) => items.map((item) => item.textContent));
    await show(page, given.path, "#replicas tbody tr");
    const replicas = await page.$$eval("#replicas tbody tr", (rows) => rows.map((row) => [...row.cells].slice(0, 3).map((cell) => cell.textContent)));
    return { strip, alerts, replicas };
  },
};

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  const result = await checks[check](browser);
  if (faults.length) throw new Error(faults.slice(0, 5).join("\n"));
  console.log(JSON.stringify(result));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  await browser.close();
}
