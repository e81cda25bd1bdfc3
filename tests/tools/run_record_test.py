# SPDX-License-Identifier: MIT
"""Records of runs: what of a run becomes a row, and when a row gives way to another."""
import json
import os
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
sys.path.insert(0, os.path.realpath(TOOLS))
import run_record  # noqa: E402
import suite_sources  # noqa: E402

FILES = "lib/base/status.h lib/base/status.cc"


def a_record(date, passed, failed=0, tree="0" * 16):
    record = run_record.Record()
    record.runs["r" + date] = (date, "a machine", "a compiler")
    record.files["f"] = FILES
    record.rows["avx2", "some_test"] = ["r" + date, "f", tree, passed, failed, 0, 1]
    if failed:
        record.notes["avx2", "some_test"].append(("failed", "A.case", "why"))
    return record


class Rows(unittest.TestCase):
    def test_give_way_to_newer_ones_alone(self):
        record = a_record("2026-01-02 10:00", 5)
        record.take(a_record("2026-01-01 10:00", 4, failed=1))
        self.assertEqual(record.rows["avx2", "some_test"][3], 5)
        record.take(a_record("2026-01-03 10:00", 6, failed=1))
        self.assertEqual(record.rows["avx2", "some_test"][3:5], [6, 1])
        record.take(a_record("2026-01-04 10:00", 7))
        self.assertNotIn("failed", record.text())

    def test_of_other_suites_stay(self):
        record, other = a_record("2026-01-01 10:00", 5), a_record("2026-01-02 10:00", 6)
        other.rows["amx", "other_test"] = other.rows.pop(("avx2", "some_test"))
        record.take(other)
        self.assertEqual([k for k in record.keys()], [("avx2", "some_test"), ("amx", "other_test")])

    def test_come_back_from_the_file_and_leave_unused_runs_behind(self):
        record = a_record("2026-01-01 10:00", 5, failed=2)
        record.runs["unused"] = ("2025-01-01 10:00", "gone", "gone")
        with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as f:
            f.write(record.text())
            f.flush()
            back = run_record.Record().read(f.name)
        self.assertEqual(back.text(), record.text())
        self.assertNotIn("unused", back.runs)

    def test_are_old_when_a_source_has_changed_or_is_gone(self):
        now = suite_sources.hash_of(FILES.split())
        self.assertEqual(a_record("2026-01-01 10:00", 5, tree=now).stale(), [])
        self.assertEqual(a_record("2026-01-01 10:00", 5).stale(), [("avx2", "some_test")])
        gone = a_record("2026-01-01 10:00", 5, tree=now)
        gone.files["f"] = FILES + " lib/base/no_such_file.h"
        self.assertEqual(gone.stale(), [("avx2", "some_test")])


class Names(unittest.TestCase):
    def test_of_files_are_the_same_packed_and_unpacked(self):
        whole = run_record.sources_in("lib/kv")
        some = whole | {"lib/base/status.h", "tests/support/paths.cc"}
        self.assertIn("lib/kv/*", run_record.pack(some))
        self.assertEqual(run_record.unpack(run_record.pack(some)), some)
        fewer = some - {sorted(whole)[0]}
        self.assertNotIn("*", run_record.pack(fewer))
        self.assertEqual(run_record.unpack(run_record.pack(fewer)), fewer)


class Results(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = self.folder.name
        self.write("machine.txt", "a processor, whose own set is amx\n")
        self.write("suites.tsv", "# compiler GCC 12.2.0\nsome_test\tnarrowed\tabcd\t%s\n" % FILES)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = os.path.join(self.at, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def job(self, job, status, tests):
        self.write("avx2/%s.status" % job, "%d 3\n" % status)
        self.write("avx2/%s.log" % job, "")
        self.write("avx2/%s.json" % job, json.dumps(
            {"testsuites": [{"name": "S", "testsuite": [dict(test, name="t") for test in tests]}]}))

    def rows(self):
        return run_record.summarize(self.at).rows

    def test_of_all_pieces_are_one_row(self):
        self.job("some_test.1of2", 0, [{"result": "COMPLETED"}])
        self.assertEqual(self.rows(), {})  # half of it
        self.job("some_test.2of2", 1, [{"result": "COMPLETED"}, {"failures": [{"failure": "no"}]}])
        row = self.rows()["avx2", "some_test"]
        self.assertEqual(row[2:], ["abcd", 2, 1, 0, 6])

    def test_of_a_program_that_died_are_a_failure(self):
        self.write("avx2/some_test.status", "139 3\n")
        self.write("avx2/some_test.log", "last words\n")
        record = run_record.summarize(self.at)
        self.assertEqual(record.rows["avx2", "some_test"][3:6], [0, 1, 0])
        self.assertIn("ended with 139: last words", record.text())

    def test_of_programs_of_unknown_sources_are_left_out(self):
        self.job("other_test", 0, [{"result": "COMPLETED"}])
        self.assertEqual(self.rows(), {})


if __name__ == "__main__":
    unittest.main()
