def page(report):
    return ""


def table_html(report):
    return ""
