"""Which connections are of one client."""

import ipaddress


def address_of(host: str) -> str:
    """What connections of one client have in common: an IPv6 host has a whole /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # no address of IP: all are one client
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ipaddress.IPv6Network((int(address), 64), strict=False)
    return str(network)
