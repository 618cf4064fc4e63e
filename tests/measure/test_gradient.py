"""Gradient measures against plain numpy, hand numbers and known answers; the SNR chart against its closed forms."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentjax import envs
from agentjax.measure import gradient, horizon
from agentjax.oracle import exact
from experiments import snr_horizon


def by_numpy(grads, g, n=1):
    """The definitions of M2 to M6, straight from their formulas, in float64."""
    grads, g = np.asarray(grads, np.float64), np.asarray(g, np.float64)
    mean, g2 = grads.mean(0), g @ g
    slope = mean @ g / g2
    cos = [x @ g / (np.linalg.norm(x) * g2**0.5) if x.any() else 0.0 for x in grads]
    trace = grads.var(0, ddof=1).sum()
    return {
        "slope": slope,
        "cosine_of_mean": mean @ g / (np.linalg.norm(mean) * g2**0.5),
        "cosine": np.mean(cos),
        "bias": ((mean - g) ** 2).sum() / g2,
        "bias_unbiased": (((mean - g) ** 2).sum() - trace / len(grads)) / g2,
        "variance": n * trace / g2,
        "snr_db_raw": 10 * np.log10(g2 / (n * ((grads - g) ** 2).sum(1).mean())),
        "snr_db": 10 * np.log10(g2 / (n * ((grads / slope - g) ** 2).sum(1).mean())),
    }


@pytest.mark.parametrize("n", [1, 4])
def test_every_measure_by_its_formula(n):
    rng = np.random.default_rng(0)
    g = rng.normal(size=7)
    grads = (0.6 * g + 1.5 * rng.normal(size=(40, 7))).astype(np.float32)
    grads[3] = 0
    g = jnp.asarray(g, jnp.float32)
    got = gradient.gradient_quality(jnp.asarray(grads), g, trajectories_per_unit=n)
    for name, value in by_numpy(grads, g, n).items():
        assert float(getattr(got, name)) == pytest.approx(value, rel=2e-4, abs=2e-5), name


def test_by_hand():
    """g_1 = [3], g_2 = [1], g = [2]: slope 1, error 1, SNR 4 = 6.02 dB; sample variance 2, over 4."""
    got = gradient.gradient_quality(jnp.array([[3.0], [1.0]]), jnp.array([2.0]))
    assert float(got.slope) == 1 and float(got.variance) == pytest.approx(0.5)
    assert float(got.snr_db_raw) == float(got.snr_db) == pytest.approx(6.0206, abs=1e-4)
    assert float(got.bias) == 0 and float(got.bias_unbiased) == pytest.approx(-0.25)
    assert float(got.cosine) == float(got.cosine_of_mean) == pytest.approx(1)


def test_slope_correction_is_blind_to_scale():
    """Shrinking a gradient tenfold flatters raw SNR and leaves the corrected one alone."""
    grads = jnp.array([1.0, 0.0])[None, :] + 10 * jax.random.normal(jax.random.key(0), (4000, 2))
    g = jnp.array([1.0, 0.0])
    full, shrunk = gradient.gradient_quality(grads, g), gradient.gradient_quality(0.1 * grads, g)
    assert float(shrunk.snr_db_raw) > float(full.snr_db_raw) + 10
    assert float(shrunk.snr_db) == pytest.approx(float(full.snr_db), abs=1e-3)


def test_streaming_equals_all_at_once():
    grads = jax.random.normal(jax.random.key(1), (60, 5)) + 1
    g = jnp.arange(5, dtype=jnp.float32)
    sums, _ = jax.lax.scan(
        lambda s, x: (gradient.add_gradients(s, x, g), None), gradient.empty_sums(5), grads.reshape(6, 10, 5)
    )
    streamed, whole = gradient.summarize(sums, g), gradient.gradient_quality(grads, g)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), streamed, whole)


@pytest.mark.parametrize("grads", [jnp.zeros((5, 3)), -jnp.ones((5, 3)), jnp.array([[1.0, -1.0, 0.0]] * 5)])
def test_no_slope_means_no_signal_and_no_nan(grads):
    got = gradient.gradient_quality(grads, jnp.ones(3))
    assert float(got.slope) <= 0 and float(got.snr_db) == -np.inf
    assert not any(bool(jnp.isnan(x)) for x in jax.tree.leaves(got))


def test_the_reference_itself_has_no_noise():
    got = gradient.gradient_quality(jnp.ones((5, 3)), jnp.ones(3))
    assert float(got.snr_db) == np.inf and float(got.bias) == 0 and float(got.variance) == 0


def test_standard_errors_match_their_spread():
    """300 repetitions of 200 units: reported errors within 25% of the spread of the estimates."""
    g = jnp.array([1.0, -0.5])
    grads = g[None, None, :] + 2 * jax.random.normal(jax.random.key(2), (300, 200, 2))
    got = jax.vmap(lambda x: gradient.gradient_quality(x, g))(grads)
    for name in ("slope", "cosine", "variance", "snr_db_raw", "snr_db"):
        spread = float(jnp.std(getattr(got, name)))
        assert float(jnp.median(getattr(got, f"{name}_se"))) == pytest.approx(spread, rel=0.25), name
    # the unbiased square bias averages to 0, the raw one to tr Cov / N / |g|^2 = 8 / 200 / 1.25
    error = float(jnp.std(got.bias_unbiased)) / 300**0.5
    assert abs(float(jnp.mean(got.bias_unbiased))) < 4.5 * error
    assert float(jnp.mean(got.bias)) == pytest.approx(8 / 200 / 1.25, rel=0.3)


def test_a_noisy_reference_is_seen_through():
    """Reference = mean of 50 draws: with its noise given, slope, bias and SNR average to the exact ones (0 dB)."""
    g, repeats = jnp.array([1.0, 0.0, 0.0, 1.0]), 400
    key_a, key_b = jax.random.split(jax.random.key(3))
    noise = 0.5**0.5  # E|g_i - g|^2 = 4 / 2 = |g|^2
    grads = g[None, None] + noise * jax.random.normal(key_a, (repeats, 100, 4))
    reference = g[None] + noise / 50**0.5 * jax.random.normal(key_b, (repeats, 4))
    quality = jax.vmap(lambda x, r: gradient.gradient_quality(x, r, reference_noise=2 / 50))(grads, reference)
    for name, truth in (("slope", 1.0), ("bias_unbiased", 0.0), ("snr_db_raw", 0.0)):
        got = getattr(quality, name)
        # ratios of averages: a second-order remainder of about noise / |g|^2 squared, 4e-4 (2e-3 dB), stays
        assert abs(float(jnp.mean(got)) - truth) < 4.5 * float(jnp.std(got)) / repeats**0.5 + 5e-3, name


def test_tabular_score_gradients_are_the_gradient_of_the_weighted_log_likelihood():
    table = jax.random.normal(jax.random.key(0), (4, 3))
    obs, action = jnp.array([[0, 2, 2], [3, 1, 0]]), jnp.array([[1, 0, 2], [2, 2, 0]])
    advantage = jnp.array([[1.0, -2.0, 0.5], [3.0, 1.0, 0.0]])

    def weighted(table, o, a, w):
        return jnp.sum(w * jax.nn.log_softmax(table, axis=-1)[o, a])

    for row in range(2):
        expected = jax.grad(weighted)(table, obs[row], action[row], advantage[row]).ravel()
        got = gradient.tabular_score_gradients(table, obs, action, advantage)[row]
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["random_mdp", "stop_continue", "umbrella"])
def test_exact_advantage_gives_the_exact_gradient(name):
    """Weighted by their probabilities, A^pi on every path adds up to dJ/dtable."""
    model = envs.make(name, **({"length": 4} if name == "umbrella" else {})).exact
    table = jax.random.normal(jax.random.key(1), (model.observations, 2))
    paths = exact.enumerate_paths(model)
    _, advantage = exact.path_values(exact.evaluate(model, table), paths)
    grads = gradient.tabular_score_gradients(table, paths.obs, paths.action, advantage)
    mean = exact.path_probability(paths, table) @ grads
    np.testing.assert_allclose(mean, exact.policy_gradient(model, table).ravel(), atol=1e-5)


# signal-to-noise against horizon


def test_closed_forms_are_the_published_numbers():
    """dB at L = 2, 10, 100; rloo's published values are measured to .2 dB."""
    table = {
        "full_return": (-8.5, -23.0, -43.0), "reward_to_go": (-7.0, -20.4, -40.0), "rloo": (-9.1, -23.6, -43.5),
        "gae_1": (-4.8, -19.6, -39.9), "gae_0": (-4.8, -12.8, -23.0), "exact": (0.0, 0.0, 0.0),
    }  # fmt: skip
    for name, published in table.items():
        for length, db in zip((2, 10, 100), published, strict=True):
            got = horizon.decibel(horizon.closed_form_snr(name, length))
            assert got == pytest.approx(db, abs=0.2 if name == "rloo" else 0.07), (name, length)


def test_closed_forms_by_enumeration():
    """L = 3, all 64 paths: |g|^2 / E|g_hat - g|^2 of the signals of single trajectories."""
    model = envs.make("umbrella", length=3).exact
    table = jnp.zeros((6, 2))
    paths, g = exact.enumerate_paths(model), np.asarray(exact.policy_gradient(model, table)).ravel()
    value, advantage = exact.path_values(exact.evaluate(model, table), paths)
    assert len(paths.chance) == 64
    weight = np.asarray(exact.path_probability(paths, table))
    for name, credit in horizon.signals(paths.reward, value, advantage, group=8).items():
        if name == "rloo":
            continue
        grads = np.asarray(gradient.tabular_score_gradients(table, paths.obs, paths.action, credit))
        noise = weight @ ((grads - g) ** 2).sum(1)
        assert (g @ g) / noise == pytest.approx(horizon.closed_form_snr(name, 3), rel=1e-4), name


@pytest.mark.parametrize("length", [2, 10, 100])
def test_measured_snr_agrees_with_the_closed_forms(length):
    """Within .5 dB per trajectory, played through env.step; and slopes of 1 within 4.5 standard errors."""
    config = snr_horizon.Config(episodes=16_384, seed=1)
    rows = snr_horizon.snr_at(jax.random.key(9), length, config)
    raw = {row["estimator"]: row for row in rows if row["measure"] == "snr_db_raw"}
    assert set(raw) == set(horizon.SIGNALS)
    for name, row in raw.items():
        assert row["value"] == pytest.approx(row["closed_form"], abs=0.5), name
        assert row["se"] < 0.15
    for row in rows:
        if row["measure"] == "slope":
            assert abs(row["value"] - 1) < 4.5 * row["se"] + 1e-5, row
        if row["measure"] == "snr_db" and row["se"] < 0.1:
            assert row["value"] == pytest.approx(row["closed_form"], abs=0.5), row


def test_chart_resumes_and_refuses_other_settings(tmp_path):
    size = ["--episodes", "256", "--chunk", "128"]
    snr_horizon.main(["--out", str(tmp_path / "cut"), "--lengths", "2", *size])
    first = (tmp_path / "cut" / "results.jsonl").read_text()
    with pytest.raises(SystemExit, match=r"lengths: \[2\] there, \[2, 3\] here"):
        snr_horizon.main(["--out", str(tmp_path / "cut"), "--lengths", "2", "3", *size])
    snr_horizon.main(["--out", str(tmp_path / "out"), "--lengths", "2", "3", *size])
    assert (tmp_path / "out" / "results.jsonl").read_text().startswith(first)
    assert (tmp_path / "out" / "snr_horizon.png").stat().st_size > 1000
    assert "| full_return | 3 |" in (tmp_path / "out" / "report.md").read_text()
    for args, say in ((["--episodes", "300", "--chunk", "128"], "episodes 300 is no positive multiple of chunk 128"),
                      (["--lengths", "1"], "lengths are different and at least 2")):  # fmt: skip
        with pytest.raises(SystemExit, match=say):
            snr_horizon.main(["--out", str(tmp_path / "bad"), *args])
    assert not (tmp_path / "bad").exists()
