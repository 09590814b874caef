"""The page of images in a real browser, on the shipped model of digits."""

from __future__ import annotations

import base64
import io

import pytest
import torch

from regard.lab.api import image
from regard.lab.inspect.distances import far_links, head_distances
from regard.lab.server.jobs import Job

ASK = {"model": "digits", "input": {"example": "3.png"}}


def test_distances_are_in_pixels_and_the_class_token_is_told_apart(lab):
    capture = lab.capture(ASK, Job())
    places, real = image.patch_centres(capture.metadata)
    rows, columns = capture.metadata["grid"]
    assert places[real].amin() > 0 and not bool(real[0]) and int(real.sum()) == rows * columns
    attention = capture.attentions[0]
    distance, special = head_distances(attention, places, real)
    weight = attention.weights(2)[1:].double()
    apart = torch.cdist(places[1:], places[1:]).double()
    patches = weight[:, 1:]
    wanted = ((patches * apart).sum(-1) / patches.sum(-1)).mean()
    assert float(distance[2]) == pytest.approx(float(wanted), rel=1e-5)
    assert float(special[2]) == pytest.approx(float(weight[:, 0].mean()), rel=1e-5)


def test_a_uniform_head_is_as_far_whatever_the_class_token_gets(lab):
    """A head that is even over patches must not look local because most of its weight is on the class token."""

    class Even:
        heads, queries = 1, 5

        def weights(self, head, rows):
            row = torch.tensor([0.9, 0.025, 0.025, 0.025, 0.025])
            return row.expand(rows[1] - rows[0], -1)

    places = torch.tensor([[0.0], [0.0], [4.0], [8.0], [12.0]])
    distance, special = head_distances(Even(), places, torch.arange(5) > 0)  # type: ignore[arg-type]
    assert float(distance[0]) == pytest.approx(5.0) and float(special[0]) == pytest.approx(0.9)


def test_rollout_multiplies_the_layers(lab):
    flow = image.rollout(lab, ASK, Job())["flow"]
    capture = lab.capture(ASK, Job())
    same = torch.eye(len(flow))
    wanted = same
    for attention in capture.attentions:
        wanted = (same + attention.weights(None).mean(0).float()) / 2 @ wanted
    assert torch.allclose(flow, wanted, atol=1e-6) and torch.allclose(flow.sum(-1), torch.ones(len(flow)), atol=1e-5)


def test_what_is_no_picture_is_refused(lab):
    from regard.errors import BadInput

    with pytest.raises(BadInput, match="picture"):
        image.run(lab, {"model": "digits", "input": {"base64": base64.b64encode(b"no picture").decode()}}, Job())


@pytest.mark.browser
def test_the_page_shows_the_weights_of_the_chosen_patch(open_lab, lab):
    page = open_lab("image?model=digits&example=3.png&attention=1&head=1&query=5&lang=en")
    found = page.evaluate("window.lab.read()")
    wanted = lab.capture(ASK, Job()).attentions[1].weights(1)[5].double()
    assert torch.allclose(torch.tensor(found["weights"], dtype=torch.float64), wanted, atol=1e-6, rtol=0)
    low, high = page.locator(".legend").first.get_attribute("data-domain").split()
    assert low == "0" and float(high) == pytest.approx(float(wanted[1:].max()), abs=1e-6)
    assert float(page.locator(".row-sum").get_attribute("title")) == pytest.approx(1.0, abs=1e-6)
    page.locator("figure canvas").focus()
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.read()")["query"] == 6
    page.keyboard.press("Home")
    page.ready()
    assert page.evaluate("window.lab.read()")["query"] == 0 and "class token" in page.locator("#main").inner_text()


@pytest.mark.browser
def test_a_drawing_is_read_and_stays_in_the_address(open_lab):
    page = open_lab("image?model=digits&example=3.png&lang=en")
    page.get_by_role("button", name="Draw here").click()
    box = page.locator(".pad").bounding_box()
    page.mouse.move(box["x"] + 84, box["y"] + 25)
    page.mouse.down()
    page.mouse.move(box["x"] + 84, box["y"] + 145, steps=6)
    page.mouse.up()
    page.get_by_text("Classify the drawing").click()
    page.wait_for_function("() => location.hash.includes('drawing=')")
    page.ready()
    from PIL import Image

    sent = page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('drawing')")
    drawn = Image.open(io.BytesIO(base64.b64decode(sent))).convert("L")
    assert drawn.size == (32, 32) and drawn.getpixel((16, 16)) == 255 and drawn.getpixel((4, 16)) == 0
    assert page.locator(".prediction .answer").count() >= 1


@pytest.mark.browser
def test_the_patch_under_the_pointer_is_the_query_until_it_leaves(open_lab, lab):
    page = open_lab("image?model=emoji&example=animal-lion.png&attention=2&head=1&query=40&lang=en")
    box = page.locator(".overlay").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 3.5 / 16, box["y"] + box["height"] * 5.5 / 16)
    page.ready()
    read = page.evaluate("window.lab.read()")
    ask = {"model": "emoji", "input": {"example": "animal-lion.png"}}
    wanted = lab.capture(ask, Job()).attentions[2].weights(1)
    assert read["query"] == 5 * 16 + 3 and read["pinned"] == 40
    assert read["weights"] == pytest.approx(wanted[83].tolist(), abs=1e-6)
    page.mouse.move(2, 2)
    page.ready()
    assert page.evaluate("window.lab.read().query") == 40 and "query=40" in page.address()
    page.mouse.click(box["x"] + 5, box["y"] + 5)
    page.ready()
    assert page.evaluate("window.lab.read().pinned") == 0 and "query=0" in page.address()


@pytest.mark.browser
def test_small_pictures_show_the_query_in_every_head_and_open_it(open_lab, lab):
    page = open_lab("image?model=digits&example=3.png&query=5&lang=zh")
    rows = image.query(lab, {**ASK, "query": 5}, Job())["weights"]
    capture = lab.capture(ASK, Job())
    for row, attention in zip(rows, capture.attentions, strict=True):
        assert torch.allclose(row, attention.weights(None)[:, 5], atol=1e-6)
    tiles = page.locator(".film button")
    assert tiles.count() == sum(len(row) for row in rows)
    assert f"最大权重 {float(rows[0][2, 1:].max()):.3g}"[:8] in tiles.nth(2).get_attribute("title")
    tiles.nth(2).click()
    page.wait_for_function("() => location.hash.includes('head=2')")
    page.ready()
    assert page.locator(".film button[aria-pressed=true]").count() == 1


def test_far_links_are_the_largest_weights_between_far_tokens(lab):
    attention = lab.capture(ASK, Job()).attentions[0]
    metadata = lab.capture(ASK, Job()).metadata
    places, real = image.patch_centres(metadata)
    queries = image.filled_patches(metadata)
    assert not bool(queries[0]) and 0 < int(queries.sum()) <= int(real.sum())
    links, weights = far_links(attention, places, queries & real, real)
    extent = float((places[real].amax(0) - places[real].amin(0)).norm())
    for head in range(attention.heads):
        counted = (torch.cdist(places, places) >= extent / 4) & (queries & real)[:, None] & real
        wanted = attention.weights(head).masked_fill(~counted, -1)
        assert float(weights[head]) == pytest.approx(float(wanted.max()), abs=1e-6)
        assert float(wanted[tuple(links[head])]) == pytest.approx(float(wanted.max()), abs=1e-6)


def test_examples_come_as_small_pictures_and_the_one_to_start_with_first(lab):
    found = image.examples(lab, {"model": "emoji"}, Job())
    assert found["names"][0] == lab.library.entry("emoji").card["start"] and len(found["names"]) == 18
    assert all(picture.dtype == torch.uint8 and max(picture.shape) <= 48 for picture in found["pixels"])


@pytest.mark.browser
def test_the_page_starts_at_the_strongest_far_link(open_lab, lab):
    page = open_lab("image?model=emoji&lang=en")
    run = image.run(lab, {"model": "emoji", "input": {"example": "vehicle-ambulance.png"}}, Job())
    best = max(
        (float(weight), a, head, int(layer["links"][head, 0]))
        for a, layer in enumerate(run["attentions"])
        for head, weight in enumerate(layer["link_weights"])
    )
    state = page.evaluate("window.lab.read()")
    assert state["query"] == best[3] and max(state["weights"]) == pytest.approx(best[0], abs=1e-6)
    words = page.inner_text(".look-here")
    assert f"in layer {best[1]}, head {best[2]}," in words and f"{100 * best[0]:.0f} % of its weight" in words


@pytest.mark.browser
def test_examples_are_chosen_by_their_pictures(open_lab):
    page = open_lab("image?model=emoji&lang=en")
    page.get_by_role("button", name="Examples").click()
    page.wait_for_selector(".picture-choice canvas")
    assert page.locator(".picture-choice canvas").count() == 18
    page.locator(".picture-choice", has_text="food-carrot").click()
    page.wait_for_function("() => location.hash.includes('food-carrot')")
    page.ready()
    assert "food" in page.locator(".prediction .answer").first.inner_text()


@pytest.mark.browser
def test_colour_over_a_picture_comes_from_the_weights_alone(open_lab):
    """Where a patch gets no weight, the picture is grey and dark."""
    page = open_lab("image?model=emoji&example=heart-blue-heart.png&lang=en")
    read = """([x, y]) => { const canvas = document.querySelector(".overlay"), at = n => Math.floor(n * canvas.width);
      return [...canvas.getContext("2d").getImageData(at(x), at(y), 1, 1).data].slice(0, 3); }"""
    page.locator("input[type=range]").fill("0")
    page.ready()
    plain = page.evaluate(read, [0.5, 0.4])
    page.locator("input[type=range]").fill("100")
    page.ready()
    dimmed = page.evaluate(read, [0.5, 0.4])
    assert sum(dimmed) < 0.75 * sum(plain) and max(dimmed) - min(dimmed) < 0.5 * (max(plain) - min(plain))


@pytest.mark.browser
def test_the_overlay_can_be_faded(open_lab):
    page = open_lab("image?model=emoji&lang=en")
    pixel = "() => [...document.querySelector('.overlay').getContext('2d').getImageData(9, 9, 1, 1).data]"
    before = page.evaluate(pixel)
    page.locator("input[type=range]").fill("0")
    page.ready()
    assert page.evaluate(pixel) != before and "strength=0" in page.address()
