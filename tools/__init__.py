"""Programs that write what the package and the pages hold; they import all of zobench, and nothing imports them."""
