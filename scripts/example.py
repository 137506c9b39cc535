"""A small shop's stock: what is there, what it is worth, and what to order. scripts/quickstart lets a model edit a copy."""

import csv
from pathlib import Path

REORDER_BELOW = 5


class Item:
    """One product on the shelf."""

    def __init__(self, name, price, count):
        self.name = name
        self.price = price
        self.count = count

    def value(self):
        return self.price * self.count

    def is_low(self):
        return self.count < REORDER_BELOW


class Stock:
    """All products, by name."""

    def __init__(self):
        self.items = {}

    def add(self, name, price, count):
        if name in self.items:
            self.items[name].count += count
        else:
            self.items[name] = Item(name, price, count)

    def sell(self, name, count):
        item = self.items[name]
        if item.count < count:
            raise ValueError(f"only {item.count} of {name} left")
        item.count -= count
        return item.price * count

    def value(self):
        return sum(item.value() for item in self.items.values())

    def to_order(self):
        return sorted(item.name for item in self.items.values() if item.is_low())

    def load(self, path):
        with Path(path).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                self.add(row["name"], float(row["price"]), int(row["count"]))


def print_report(stock):
    for item in stock.items.values():
        print(f"{item.name:<20} {item.count:>5} {item.value():>10.2f}")
    print(f"{'total':<26} {stock.value():>10.2f}")


if __name__ == "__main__":
    stock = Stock()
    stock.add("pencil", 0.40, 120)
    stock.add("notebook", 2.50, 30)
    stock.add("stapler", 12.00, 3)
    stock.sell("notebook", 4)
    print_report(stock)
    print("to order:", ", ".join(stock.to_order()))
