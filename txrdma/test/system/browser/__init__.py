"""
The monitor's pages in a real browser: Chromium, driven by Selenium.
"""
