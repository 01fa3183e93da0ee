"""Prices of egress."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest

from headrace import MDSWriter
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.mixing import load_config
from headrace.simulate import Conditions
from headrace.simulate.page import SimulationServer, costs, read_prices
from headrace.simulate.page import page as page_of


def test_prices(tmp_path):
    assert read_prices()['Cloudflare R2'] == 0
    (tmp_path / 'prices.yaml').write_text('ours: 0.05\nother, region: 1\n')
    assert costs(3 * 10**9, read_prices(tmp_path / 'prices.yaml')) == {'ours': 0.15, 'other, region': 3.0}
    (tmp_path / 'prices.yaml').write_text('ours: much\n')
    with pytest.raises(ConfigError, match="'much' for ours"):
        read_prices(tmp_path / 'prices.yaml')


def test_a_page_escapes_its_title(simulated_run):
    assert '<script>' not in page_of(simulated_run(), {}, title='<script>')


BROWSER, DRIVER = shutil.which('chromium'), shutil.which('chromedriver')


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp('page')
    with MDSWriter(out=str(tmp_path / 'remote'), columns={'x': 'ndarray:uint8:1000'}, size_limit=81_000) as writer:
        writer.write_batch({'x': np.zeros((2560, 1000), np.uint8)})
    train = {'remote': str(tmp_path / 'remote'), 'local': str(tmp_path / 'cache'), 'shuffle': True}
    config = load_config({'global_batch_size': 16, 'train': train}).train
    conditions = Conditions(bandwidth=200 * 1024, latency=0.02, batches=160)
    with SimulationServer(config, conditions, {'Ours': 0.05}, title='<b>.yaml') as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(page, path, **headers):
    connection = http.client.HTTPConnection('127.0.0.1', page.server_port, timeout=60)
    connection.request('GET', path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer, text


def test_the_page_has_a_field_for_each_value_and_needs_no_network(page):
    status, answer, text = get(page, '/')
    assert status == 200
    assert 'value="200kb"' in text
    assert 'name="shuffle_block_size" value="" placeholder="' in text
    assert '&lt;b&gt;.yaml' in text
    assert '<b>' not in text
    assert 'http' not in text
    assert "default-src 'none'" in answer.headers['Content-Security-Policy']


def test_a_run_stands_beside_the_one_as_configured(page):
    status, _, text = get(page, '/run?' + urlencode({'bandwidth': '1gb', 'shuffle_block_size': '', 'ranks': '2'}))
    shown = json.loads(text)['html']
    assert status == 200
    assert shown.count('<polyline') == 6
    assert 'as configured' in shown
    assert 'Ours' in shown


@pytest.mark.parametrize(
    ('value', 'rule'),
    [
        ({'ranks': 'many'}, 'ranks, of all nodes: must be a whole number'),
        ({'latency': '-1'}, 'must be 0 or more'),
        ({'bandwidth': 'quick'}, 'A size in bytes'),
        ({'ranks': '3'}, '16'),
        ({'num_workers': '1' + '0' * 30}, 'from 0 to 256'),
        ({'num_workers': '-1'}, 'from 0 to 256'),
        ({'step_seconds': '1e308'}, 'too small or too large'),
    ],
)
def test_a_wrong_value_is_named(page, value, rule):
    status, _, text = get(page, '/run?' + urlencode(value))
    assert status == 400
    assert rule in json.loads(text)['error']


def test_a_run_without_end_is_ended(page, monkeypatch):
    monkeypatch.setattr('headrace.simulate.page.MOST_SECONDS', 0.0)
    status, _, text = get(page, '/run?latency=1e308')
    assert status == 400
    assert 'was not done after' in json.loads(text)['error']


@pytest.mark.parametrize('name', ['epochs', 'num_canonical_nodes', 'shuffle_block_size', 'predownload', 'batches'])
def test_a_number_that_is_too_large_is_bounded_and_the_next_run_answers(page, monkeypatch, name):
    monkeypatch.setattr('headrace.simulate.page.MOST_SECONDS', 1.0)
    status, _, text = get(page, '/run?' + urlencode({name: '9' * 15}))
    assert status == 200 or json.loads(text)['error']
    monkeypatch.undo()
    assert get(page, '/run?batches=5')[0] == 200


def test_a_run_that_needs_too_much_memory_is_ended(page, monkeypatch):
    monkeypatch.setattr('headrace.simulate.page.MOST_MEMORY', 1 << 20)
    status, _, text = get(page, '/run?batches=5')
    assert status == 400
    assert 'needs more than 0 GiB' in json.loads(text)['error']


def test_a_port_in_use_is_named(page):
    with pytest.raises(ConfigError, match=rf'--port must be a free port .* got {page.server_port}: '):
        SimulationServer(page.simulations.config, Conditions(batches=1), {}, title='x', port=page.server_port)
    with pytest.raises(ConfigError, match='got 99999: '):
        SimulationServer(page.simulations.config, Conditions(batches=1), {}, title='x', port=99999)


def test_other_pages_do_not_reach_it(page):
    assert get(page, '/', Host='evil.example')[0] == 403
    elsewhere = {'Sec-Fetch-Site': 'cross-site', 'Sec-Fetch-Dest': 'document'}
    assert get(page, '/run?ranks=1', **elsewhere)[0] == 403
    assert get(page, '/', **{**elsewhere, 'Sec-Fetch-Dest': 'iframe'})[0] == 403
    assert get(page, '/', **elsewhere)[0] == 200  # a link was followed
    assert get(page, '/etc/passwd')[0] == 404


def test_the_page_and_its_file_exclude_each_other(tmp_path, capsys):
    path = tmp_path / 'train.yaml'
    path.write_text('global_batch_size: 8\ntrain: {local: data}\n')
    assert main(['simulate', str(path), '--ui', '--json']) == 1
    assert 'leave out --json' in capsys.readouterr().err
    with pytest.raises(ConfigError, match='more than 0'):
        Conditions(bandwidth=-1)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None or DRIVER is None, reason='needs chromium and chromedriver')
def test_plots_follow_the_values_in_a_browser(page):
    """A folder in SCREENSHOTS gets pictures of the page."""
    webdriver = pytest.importorskip('selenium.webdriver')
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in (
        '--headless=new',
        '--no-sandbox',
        '--disable-gpu',
        '--disable-dev-shm-usage',
        '--window-size=1200,1080',
    ):
        options.add_argument(option)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    wait = WebDriverWait(driver, 120, 0.05)

    def picture(name):
        if 'SCREENSHOTS' in os.environ:
            driver.save_screenshot(str(Path(os.environ['SCREENSHOTS'], name)))

    def figures():
        return {
            row.find_elements(By.TAG_NAME, 'td')[0].text: [
                cell.text for cell in row.find_elements(By.TAG_NAME, 'td')[1:]
            ]
            for row in driver.find_elements(
                By.CSS_SELECTOR, '#result table:first-of-type tbody tr, #result table:first-of-type tr'
            )
            if row.find_elements(By.TAG_NAME, 'td')
        }

    def curve():
        return driver.find_element(By.CSS_SELECTOR, '#result polyline.now').get_attribute('points')

    def put(name, value):
        field = driver.find_element(By.NAME, name)
        field.clear()
        field.send_keys(value)

    def is_done(_):
        return driver.find_element(By.TAG_NAME, 'body').get_attribute('data-state') == 'done'

    try:
        driver.get(page.url)
        wait.until(is_done)
        now, then = figures()['waiting']
        assert now == then
        first = curve()
        picture('as_configured.png')
        put('shuffle_block_size', '200')
        wait.until(lambda _: is_done(_) and curve() != first)
        now, then = figures()['waiting']
        assert float(now.split()[0]) < float(then.split()[0])
        assert len(driver.find_elements(By.CSS_SELECTOR, 'input.changed')) == 1
        picture('simulate_ui.png')
        good = curve()
        put('ranks', '3')
        wait.until(lambda _: is_done(_) and 'error' in driver.find_element(By.ID, 'status').get_attribute('class'))
        assert '16' in driver.find_element(By.ID, 'status').text
        assert curve() == good
        picture('error.png')
        put('ranks', '1')
        wait.until(lambda _: is_done(_) and not driver.find_element(By.ID, 'status').text)
        driver.refresh()  # the address keeps the values
        wait.until(is_done)
        assert curve() == good
        driver.find_element(By.CSS_SELECTOR, 'button[type=reset]').click()
        wait.until(lambda _: is_done(_) and curve() == first)
        assert [
            entry
            for entry in driver.get_log('browser')
            if 'favicon' not in entry['message'] and '400' not in entry['message']
        ] == []
    finally:
        driver.quit()
