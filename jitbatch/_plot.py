def plot(report):
    return None
