# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: what it shows of a store is what the store holds; mouse and keyboard reach everything; the
console stays empty; hostile texts stay texts; without the token nothing is shown."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

from harness import BIN, Case, cairn, flip, main, wait_until  # noqa: E402
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars")
SHOTS = Path(sys.argv.pop(sys.argv.index("--shots") + 1)) if "--shots" in sys.argv else None
if SHOTS:
    sys.argv.remove("--shots")
    SHOTS.mkdir(parents=True, exist_ok=True)
HOSTILE = '<img src=x onerror="document.title=1">\u202e&amp;'


def browser(case, width=1280, height=900):
    """A Chromium with an empty profile, which ends with the test."""
    options = webdriver.ChromeOptions()
    profile = tempfile.TemporaryDirectory(prefix="cairn-browser-")
    for flag in (*FLAGS, f"--user-data-dir={profile.name}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    case.addCleanup(profile.cleanup)
    case.addCleanup(driver.quit)
    return driver


class Page(Case):
    def start(self, **keys):
        keys = {"listen_plain_tcp": "loopback", "http_listen": "127.0.0.1:0", "scrub_every": "0s", "gc_every": "0s", **keys}
        self.server = self.daemon(**keys)
        self.url = "http://" + self.server.log().split("http: listening addr=tcp:")[1].split()[0]
        self.where = ("--server", f"unix:{self.server.socket}")
        self.driver = browser(self)

    def fill(self):
        """A run with two lineages, a pin, damage, a forgotten checkpoint, metrics and a hostile tag."""
        group = self.group(self.server)
        for step in range(10, 90, 10):
            group.all("fill", step)
            group.save(step)
            cairn("annotate", "demo/run", str(step), "--metric", f"loss={4 / step ** 0.5:.4f}", "--metric", f"lr={step * 1e-5}",
                  *self.where, check=0)
        group.end()
        cairn("tag", "demo/run", "80", HOSTILE, *self.where, check=0)
        again = self.group(self.server)
        again.restore("50")
        for step in (55, 60, 70, 75):
            again.all("fill", step)
            again.save(step)
        again.end()
        cairn("pin", "demo/run", "30@1", *self.where, check=0)
        cairn("forget", "demo/run", "20@1", *self.where, check=0)
        flip(self.server.files("runs/demo/run/objects/1-40/0-*")[0], 0)
        cairn("scrub", "--wait", *self.where, check=6)

    def see(self, css, text="", root=None):
        """The first element that has this text, once it is there."""
        found = []

        def look():
            try:
                found[:] = [one for one in (root or self.driver).find_elements(By.CSS_SELECTOR, css) if text in one.text]
            except StaleElementReferenceException:  # the page was drawn anew meanwhile
                return False
            return bool(found)
        wait_until(f"{css} with '{text}' is seen", look)
        return found[0]

    def shoot(self, name):
        if SHOTS:
            self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def assert_clean(self):
        """Neither an error in the console nor a file from elsewhere."""
        self.assertEqual([line["message"] for line in self.driver.get_log("browser")], [])
        names = self.driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        self.assertEqual([name for name in names if not name.startswith(self.url + "/")], [])

    def test_what_is_shown(self):
        self.start()
        self.fill()
        driver = self.driver
        driver.get(self.url)
        row = self.see("a.run", "run")
        self.assertIn("step 75", row.text)
        self.assertIn("1 damaged", row.text)
        self.shoot("runs")
        row.click()
        self.see("h1", "run")
        self.assertEqual(driver.title, "demo/run – Cairn")
        self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, ".tree .node")), 12)
        for kind, count in (("damaged", 1), ("gone", 1), ("pin", 1)):
            self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, f".tree .{kind}")), count, kind)
        self.assertIn("loss", driver.find_elements(By.CSS_SELECTOR, "figure")[0].text)
        Select(self.see("select")).select_by_value("lr")
        self.shoot("run")
        tree = driver.find_element(By.CSS_SELECTOR, ".tree .pin")
        tree.click()
        chosen = self.see("section[aria-label='Checkpoint 30@1']")
        self.assertIn(f"cairn pin demo/run 30@1 --server unix:{self.server.socket}".replace("pin", "unpin"), chosen.text)
        self.assertIn("cairn diff demo/run", chosen.text)
        self.shoot("checkpoint")
        self.see("button", "Copy", chosen).click()
        self.see(".toast.shown", "Copied.")
        for name, text in (("store", "Garbage collection"), ("projects", "demo"), ("live", "No save is under way")):
            driver.get(f"{self.url}/#/{name}")
            self.see("main", text)
            self.shoot(name)
        self.assert_clean()

    def test_many_runs(self):
        """Of many runs the rows near the window are made, by scrolling all of them; the filter finds each;
        a page that changes stays where it is."""
        self.start()
        self.assertEqual(self.server.stop(), 0)
        for number in range(120):
            subprocess.run([BIN / "many_checkpoints", f"dir:{self.server.store}", f"lab/run{number:03}", "2"], check=True)
        self.server.keys["http_listen"] = self.url.removeprefix("http://")
        self.server.start()
        self.driver.get(self.url)
        self.see("[role=status]", "120 runs")
        rows = lambda: len(self.driver.find_elements(By.CSS_SELECTOR, "a.run"))  # noqa: E731
        wait_until("few rows are made", lambda: 25 <= rows() <= 75)
        self.assertEqual(self.driver.find_element(By.CSS_SELECTOR, "[role=listitem]").get_attribute("aria-setsize"), "120")
        self.driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        last = "return document.querySelector('[aria-posinset=\"120\"]')?.getBoundingClientRect().top"
        wait_until("the last row is made", lambda: self.driver.execute_script(last) is not None)
        self.driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        at = self.driver.execute_script(last)
        group = self.group(self.server)
        group.save(1)
        self.see("[role=status]", "121 runs")
        self.assertLess(abs(self.driver.execute_script(last.replace("120", "121")) - at), 120)
        self.driver.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("run077")
        self.see("[role=status]", "1 run")
        self.see("a.run", "run077").click()
        self.see("h1", "run077")
        self.assert_clean()

    def test_late_while_its_ranks_are_there(self):
        """A run whose ranks are connected, without a commit for twice its usual interval, is late; one that has ended is not."""
        self.start()
        group = self.group(self.server)
        for step in range(1, 5):
            group.all("fill", step)
            group.save(step)
        group.end()
        self.assertEqual(self.server.stop(), 0)
        self.server.keys["http_listen"] = self.url.removeprefix("http://")
        self.server.env = {"LD_PRELOAD": str(BIN / "e2e_clock.so"), "CAIRN_TEST_AHEAD_S": "7200"}
        self.server.start()
        self.driver.get(self.url)
        self.see("a.run", "2 h ago")
        self.assertNotIn("late", self.driver.find_element(By.ID, "main").text)
        again = self.group(self.server)
        again.restore("4")
        self.see("a.run", "late")
        again.end()
        wait_until("it is not late any more", lambda: "late" not in self.driver.find_element(By.ID, "main").text)
        self.assert_clean()

    def test_commands_work_as_copied(self):
        self.start()
        self.fill()
        self.driver.get(f"{self.url}/#/run/demo/run")
        self.see(".node.pin").click()
        for line in self.see("section[aria-label='Checkpoint 30@1']").find_elements(By.CSS_SELECTOR, "code"):
            words = line.text.split()
            if words[1] == "restore":
                words[words.index("--to") + 1] = str(self.bed.path / "restored")
            cairn(*words[1:], check=1 if words[1] == "diff" else 0)

    def test_hostile_texts_stay_texts(self):
        self.start()
        self.fill()
        self.driver.get(f"{self.url}/#/run/demo/run")
        self.assertEqual(self.see("td .badge.info", "onerror").text, HOSTILE.replace("\u202e", "\\u202e"))
        self.assertEqual(self.driver.find_elements(By.CSS_SELECTOR, "main img, main script"), [])
        self.assertEqual(self.driver.title, "demo/run – Cairn")
        self.driver.get(f"{self.url}/#/run/%3Cimg%20src=x%20onerror=alert(1)%3E/x")
        self.see("main [role=alert]", "INVALID")
        self.driver.get(self.url)
        self.driver.execute_script("const s = document.createElement('script'); s.textContent = 'document.title = 7'; "
                                   "document.body.append(s)")
        self.assertNotEqual(self.driver.title, "7")  # the policy of the answer forbids it
        self.assertIn("Content Security Policy", json.dumps(self.driver.get_log("browser")))

    def test_keyboard_and_roles(self):
        self.start()
        self.fill()
        driver = self.driver
        driver.get(self.url)
        self.see("a.run")
        reached = []
        for _ in range(20):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            reached.append(driver.switch_to.active_element)
            if "run" == reached[-1].get_attribute("class"):
                break
        self.assertEqual(reached[0].get_property("textContent"), "Skip to the content")
        self.assertEqual(reached[-1].get_attribute("class"), "run")
        reached[-1].send_keys(Keys.ENTER)
        link = self.see("button.link", "55@2")
        link.send_keys(Keys.ENTER)
        self.see("section[aria-label='Checkpoint 55@2']")
        self.assertEqual(driver.switch_to.active_element.text, "55@2")  # the place is kept
        tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")]
        for role in ("banner", "navigation", "main", "contentinfo", "table", "columnheader"):
            self.assertIn(role, [one for one, _ in roles])
        unnamed = [role for role, name in roles if role in ("button", "link", "textbox", "searchbox", "combobox", "image") and not name]
        self.assertEqual(unnamed, [])
        self.assert_clean()

    def test_a_save_under_way(self):
        self.start()
        group = self.group(self.server)
        group.save(1)
        self.driver.get(f"{self.url}/#/live")
        self.see("main", "No save is under way")
        group[0].send("save", 2, 20000)  # rank 1 does not come
        card = self.see("section.card", "step 2")
        self.see(".rank", "rank 1")
        self.assertIn("has not come", card.text)
        self.see("#live-count", "1")
        self.shoot("saving")
        group[1].do("save", 2, 20000)
        group[0].reply()
        self.see("main", "No save is under way")
        self.assert_clean()

    def test_the_token_opens_it(self):
        secret = self.bed.path / "token"
        secret.write_text("a" * 32 + "\n")
        secret.chmod(0o600)
        self.start(listen_plain_tcp="no", http_token_file=secret)
        self.driver.get(self.url)
        self.see("#token-text").send_keys("wrong", Keys.ENTER)
        self.see("#token-error", "does not know this token")
        self.shoot("token")
        self.see("#token-text").clear()
        self.see("#token-text").send_keys("a" * 32, Keys.ENTER)
        self.see("main", "Nothing was saved here yet.")
        other = browser(self)
        other.get(f"{self.url}/#token={'a' * 32}")
        wait_until("the link opens it", lambda: "Nothing was saved" in other.find_element(By.ID, "main").text)
        self.assertNotIn("aaaa", other.current_url)

    def test_a_daemon_that_hangs_or_begins_anew(self):
        self.start()
        self.fill()
        self.driver.get(self.url)
        self.see("a.run", "step 75")
        self.server.process.send_signal(signal.SIGSTOP)
        self.see("#health-word", "no answer")  # not the last good word
        self.server.process.send_signal(signal.SIGCONT)
        self.see("#health-word", "yellow")
        self.assertEqual(self.server.stop(), 0)
        self.server.keys["http_listen"] = self.url.removeprefix("http://")
        self.server.start()
        cairn("forget", "demo/run", "70@2", *self.where, check=0)  # its changes are fewer than those that the page has seen
        self.see("a.run", "10 ckpts")

    def test_numbers_at_the_edge(self):
        """Values whose difference is below a double's last place, and those that JSON does not have."""
        self.start()
        group = self.group(self.server)
        for step, values in enumerate((("1e16", "1e308"), ("10000000000000002", "-1e308"), ("inf", "-inf"), ("1e16", "1e-320")), 1):
            group.all("fill", step)
            group.save(step)
            cairn("annotate", "demo/run", str(step), "--metric", f"loss={values[0]}", "--metric", f"__proto__={values[1]}",
                  *self.where, check=0)
        group.end()
        self.driver.get(f"{self.url}/#/run/demo/run")
        self.see("figure", "loss")
        Select(self.see("select")).select_by_value("__proto__")
        self.see("figure", "__proto__")
        self.see("td", "4@1")
        self.assert_clean()

    def test_steps_beyond_a_double(self):
        """A step keeps its digits on the page and in the commands; a metric may have the name of a step."""
        self.start()
        group = self.group(self.server)
        steps = [(1 << 53) + 1, (1 << 53) + 2, (1 << 53) + 3, (1 << 64) - 2]
        for step in steps:
            group.all("fill", step)
            group.save(step)
            cairn("annotate", "demo/run", str(step), "--metric", f"step={step}", *self.where, check=0)
        group.end()
        self.driver.get(self.url)
        self.see("a.run", f"step {steps[-1]}")
        self.driver.get(f"{self.url}/#/run/demo/run")
        for step in steps:
            self.assertIn(f"cairn show demo/run {step}@1 ", self.pick(step))
        self.assertIn(f"cairn diff demo/run {steps[-1]}@1 {steps[0]}@1", self.pick(steps[0]))
        self.assert_clean()

    def pick(self, step):
        self.see("button.link", f"{step}@1").click()
        return self.see(f"section[aria-label='Checkpoint {step}@1']").text

    def test_links_that_mean_nothing(self):
        self.start()
        for link in ("#/constructor", "#/%zz", "#token=%zz"):
            self.driver.get("about:blank")
            self.driver.get(f"{self.url}/{link}")
            self.see("main", "Nothing was saved here yet.")
            self.see("#health-word", "green")

    def test_looks(self):
        """Dark, light and a phone: nothing is wider than the screen."""
        self.start()
        self.fill()
        for scheme in ("light", "dark"):
            for width, height in ((1280, 1500), (390, 1800)):
                self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
                self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
                for name, place, text in (("runs", "", "step 75"), ("run", "run/demo/run", "Lineages"),
                                          ("store", "store", "Scrub"), ("projects", "projects", "demo")):
                    self.driver.get(f"{self.url}/#/{place}")
                    self.see("main", text)
                    time.sleep(0.3)
                    self.shoot(f"{name}-{scheme}-{width}")
                    self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth"), width, (name, scheme))
        self.assert_clean()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    main()
