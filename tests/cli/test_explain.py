"""heddle explain: its page, what a run would need, tensors that are not there; and the page in a browser."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import unittest

from program import INPUT, ProgramTest

CAUSAL = ("--mask", "q_idx >= kv_idx")
# 1 TiB of k, and as much of v.
HUGE = ("--dtype", "f64", "--q-shape", "2x32x128x512", "--k-shape", "2x32x4194304x512", "--v-shape", "2x32x4194304x512")

# Reads the page as a person does: colours of the mask, zoomed in and out by the wheel, and moved.
LOOK = """
<script>
(() => {
  const canvas = document.getElementById("mask-canvas"), said = {};
  const share = () => {
    const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), count = {};
    for (let at = 0; at < data.length; at += 4) {
      const color = [data[at], data[at + 1], data[at + 2]].join(" ");
      count[color] = (count[color] || 0) + 1 / (width * height);
    }
    return {view: canvas.dataset.view, full: count["47 107 166"] || 0, partial: count["242 177 78"] || 0,
            empty: count["241 240 236"] || 0};
  };
  const box = canvas.getBoundingClientRect(), at = (x, y) => ({clientX: box.left + x * box.width, clientY: box.top + y * box.height});
  said.whole = share();
  for (let turn = 0; turn < 12; ++turn) canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: -1, ...at(0.02, 0.98)}));
  said.near = share();
  canvas.dispatchEvent(new PointerEvent("pointermove", at(0.5, 0.5)));
  said.where = document.getElementById("where").textContent;
  for (let turn = 0; turn < 30; ++turn) canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: 1, ...at(0.7, 0.2)}));
  said.again = share();
  const text = document.createElement("pre");
  text.id = "said";
  text.textContent = JSON.stringify(said);
  document.body.append(text);
})();
</script>
"""


class Links(html.parser.HTMLParser):
    """What a page would fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.data, self.in_data = [], "", False

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "action")]
        self.in_data = tag == "script" and ("id", "data") in attrs

    def handle_data(self, data):
        if self.in_data:
            self.data += data


class Explain(ProgramTest):
    def page(self, *arguments):
        """The page as text, and the data inside."""
        path = self.folder / "page.html"
        self.run_well("explain", *arguments, "--html", path)
        text = path.read_text()
        links = Links()
        links.feed(text)
        self.assertEqual(links.found, [])  # it is whole
        self.assertNotIn("@import", text)
        return text, json.loads(links.data)

    def test_the_page_has_what_json_has(self):
        printed = self.run_json("explain", INPUT, *CAUSAL)
        _, data = self.page(INPUT, *CAUSAL)
        for key in ("explanation", "memory", "heddle", "measured"):
            self.assertEqual(data[key], printed[key])
        self.assertIsNone(data["measured"])

    def test_the_mask_of_the_page(self):
        _, data = self.page(INPUT, "--mask", "q_idx >= kv_idx or h == 1")
        mask, shown = data["explanation"]["mask"], data["mask"]
        self.assertEqual((shown["block"], shown["left_out"]), (mask["block"], 0))
        self.assertEqual([matrix["name"].split(", ")[-1] for matrix in shown["matrices"]], [f"head {h}" for h in range(4)])
        counts = {"full": 0, "partial": 0}
        for matrix in shown["matrices"]:
            self.assertEqual(len(matrix["index"]), matrix["q_blocks"])
            for row in matrix["index"]:
                runs = matrix["rows"][row]
                for begin, end, full in zip(runs[::3], runs[1::3], runs[2::3]):
                    self.assertTrue(0 <= begin < end <= matrix["kv_blocks"])
                    counts["full" if full else "partial"] += end - begin
        batch = 2  # both entries share the rows
        self.assertEqual({name: count * batch for name, count in counts.items()}, {name: mask[name] for name in counts})

    def test_everything_attends(self):
        self.assertIsNone(self.page(INPUT)[1]["mask"])

    def test_a_page_that_would_be_too_large_has_a_coarser_picture(self):
        shapes = [word for name in "qkv" for word in (f"--{name}-shape", "1x1x200000x64")]
        checkered = "(q_idx // 128) * (q_idx // 128) % 8191 > (kv_idx // 128) * 31 % 1009 * 8"
        _, data = self.page(*shapes, "--mask", checkered)
        self.assertEqual((data["mask"]["left_out"], data["mask"]["matrices"]), (1, []))
        self.assertIn("<svg", data["mask"]["picture"])

    def test_texts_stay_texts(self):
        """A mod cannot end the script that holds it."""
        text, data = self.page(INPUT, "--mask", "kv_idx <q_idx")
        self.assertEqual(text.count("<script"), 2)
        self.assertIn("<", data["explanation"]["mods"]["mask"]["given"])
        self.assertNotIn("<", text[text.index('id="data">') + 10 : text.index("</script>")])

    def test_measured(self):
        text, data = self.page(INPUT, *CAUSAL, "--measure")
        self.assertGreater(data["measured"]["seconds"], 0)
        self.assertGreaterEqual(data["measured"]["runs"], 3)
        printed = self.run_well("explain", INPUT, *CAUSAL, "--measure")
        self.assertRegex(printed, r"\nmeasured   \S+ \S+, the median of \d+ runs")

    def test_what_this_machine_cannot_hold(self):
        """Planned and explained all the same, with what a run would need."""
        data = self.run_json("explain", *HUGE, *CAUSAL)
        memory = data["memory"]
        q, k = 2**25, 2**40
        self.assertEqual([memory["parts"][name] for name in ("q", "k", "v", "o")], [q, k, k, q])
        self.assertIn("workspace", memory["parts"])
        self.assertEqual(memory["total"], sum(memory["parts"].values()))
        self.assertGreater(memory["total"], memory["machine"])
        self.assertRegex(memory["sentence"], r"^A run needs 2(\.\d+)? TiB; this machine has [\d.]+ [GT]iB")
        text = self.run_well("explain", *HUGE)
        self.assertRegex(text, r"\n +A run needs [\d.]+ TiB; this machine has [\d.]+ GiB")
        small = self.run_json("explain", INPUT, *CAUSAL)
        self.assertIsNone(small["memory"]["sentence"])
        there = self.run_json("explain", "--q-shape", "1x64x400000x128", "--k-shape", "1x8x400000x128", "--v-shape",
                              "1x8x400000x128", *CAUSAL, "--gpu", "h200", "--dtype", "bf16")
        self.assertEqual((there["memory"]["parts"]["q"], there["memory"]["machine"]), (64 * 400000 * 128 * 2, None))

    def test_products_of_the_cpu(self):
        shapes = [word for name in "qkv" for word in (f"--{name}-shape", "1x1x64x64")]
        environment = {**os.environ, "HEDDLE_CPU_AMX": "off"}
        for dtype, products in (("f32", "f32"), ("f64", "f64"), ("bf16", "f32")):
            arguments = ("explain", *shapes, "--dtype", dtype)
            self.assertEqual(self.run_json(*arguments, env=environment)["explanation"]["kernel"]["products"], products)
            text = self.run_well(*arguments, env=environment)
            self.assertIn(f"cpu_forward in {products}, ", text)
            self.assertNotIn("products:", text)  # the summary says it

    def test_shapes_are_planned_as_tensors_are(self):
        shapes = [word for name in "qkv" for word in (f"--{name}-shape", "2x4x512x32")]
        self.assertEqual(self.run_json("explain", *shapes, "--dtype", "f16", *CAUSAL)["explanation"],
                         self.run_json("explain", INPUT, *CAUSAL)["explanation"])

    def test_refusals(self):
        shapes = ("--q-shape", "1x2x3x4")
        others = ("--k-shape", "1x2x3x4", "--v-shape", "1x2x3x4")
        for sentence, *arguments in (
            *((f"--q-shape: '{shape}' is not of the form BxHxSxD with sizes from 0 to 2147483647, such as 2x8x4096x64",
               "--q-shape", shape, *others)
              for shape in ("1x2x3", "1x2x3x4x5", "1x2x3x-4", "1x2x2147483648x4", "1,2,3,4", "1xx3x4", "1x2x3x4x")),
            ("no k: give a .safetensors file that holds it, --k FILE.npy, or --k-shape BxHxSxD", *shapes),
            ("--q and --q-shape: give one of them", *shapes, *others, "--q", "q.npy"),
            ("--backward needs tensors that are there", INPUT, *shapes, "--backward", "DO=o.npy"),
            ("name the GPU by --gpu instead", INPUT, *shapes, "--backend", "cuda"),
            ("--measure is for forwards on the CPU", INPUT, *shapes, "--measure"),
            ("--measure is for forwards on the CPU", INPUT, "--gpu", "h100", "--measure"),
            ("--html: examples/data/minilm.safetensors", "examples/data/minilm.safetensors", "--html",
             "examples/data/minilm.safetensors"),
        ):
            with self.subTest(sentence):
                self.assert_fails(2, sentence, "explain", *arguments, cwd=self.folder)
        self.assert_fails(1, "no address space", "explain", *(w for n in "qkv" for w in (f"--{n}-shape", "2147483647x1x2147483647x64")))
        self.assert_fails(1, "", "explain", INPUT, "--html", self.folder / "no" / "page.html")

    @unittest.skipUnless(shutil.which("chromium"), "chromium is not installed (--full installs it)")
    def test_in_a_browser(self):
        for arguments in ((INPUT, *CAUSAL, "--measure"),
                          ("--gpu", "h200", "--dtype", "bf16", "--q-shape", "1x64x65536x128", "--k-shape", "1x8x65536x128",
                           "--v-shape", "1x8x65536x128", *CAUSAL)):
            text, data = self.page(*arguments)
            looked = self.folder / "looked.html"
            looked.write_text(text.replace("</html>", LOOK + "</html>"))
            dom = subprocess.run(
                ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder / 'profile'}",
                 "--window-size=1200,2400", "--virtual-time-budget=5000", "--dump-dom", looked.as_uri()],
                capture_output=True, text=True, check=True, timeout=120).stdout
            self.assertIn('data-drawn="yes"', dom)
            said = json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', dom, re.DOTALL)[1]))
            # Causal: full below the diagonal, empty above it, and as many blocks as the statistics say.
            mask = data["explanation"]["mask"]
            blocks = mask["full"] + mask["partial"] + mask["empty"]
            for kind in ("full", "empty"):
                self.assertAlmostEqual(said["whole"][kind], mask[kind] / blocks, delta=0.02)
            # Near the lower left corner all is full; the whole mask comes back.
            near = said["near"]
            self.assertGreater(near["full"], 0.5)  # lines stand between large blocks
            self.assertEqual(near["partial"] + near["empty"], 0)
            self.assertNotEqual(said["near"]["view"], said["whole"]["view"])
            self.assertRegex(said["where"], r"^queries \d+ to \d+, keys \d+ to \d+: full$")
            self.assertEqual(said["again"], said["whole"])
            for sentence in data["explanation"]["rejected"]:
                self.assertIn(sentence, html.unescape(dom))
            self.assertIn('id="roof"', dom)
            self.assertEqual(dom.count('class="measured"'), 1 if "--measure" in arguments else 0)
            self.assertEqual(dom.count('class="predicted"'), 1)
            for title in ("Plan", "Memory", "Mods", "Mask", "Time", "What was rejected", "Kernel"):
                self.assertIn(f"<h2>{title}</h2>", dom)


if __name__ == "__main__":
    unittest.main()
