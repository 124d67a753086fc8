"""What an error of the command line looks like."""


def assert_one_line(error, words):
    assert error.startswith('error: ')
    assert error.endswith('\n')
    assert error.count('\n') == 1
    for word in words:
        assert word in error
