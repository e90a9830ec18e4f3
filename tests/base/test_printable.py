from surestep.base.printable import one_line, printable


def test_what_steers_a_terminal_is_spelled_out():
    assert printable("a\x1b[2Jb\rc\x9bd\x07") == r"a\x1b[2Jb\rc\x9bd\x07"
    assert printable("\u202eabc") == r"\u202eabc"


def test_what_is_read_stays():
    assert printable("läßt 你好 → x\ny") == "läßt 你好 → x\ny"


def test_line_breaks_of_a_name_are_spelled_out():
    assert one_line("a\nb\x1b[2J") == r"a\nb\x1b[2J"
