"""Columns of logs and stops by their names: of users, places and times, and others named like ids. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sfumato.schemas.errors import MissingColumnError, RequestError

AXES = ("latitude_column", "longitude_column")
ROLES = ("user_id_column", *AXES, "time_column")
# Names by which a column is recognised, in lower case and the order of preference.
NAMES: Mapping[str, tuple[str, ...]] = {
    "user_id_column": ("user_id", "userid", "user", "rider_id", "rider", "device_id", "device", "person_id", "person",
                       "customer_id", "client_id", "passenger_id", "card_id", "card", "uid",
                       "nutzer_id", "nutzer", "kunde", "fahrgast", "cartão", "cartao", "usuário", "usuario",
                       "utilizador", "tarjeta", "id"),
    "latitude_column": ("latitude", "lat", "breitengrad", "breite", "latitud", "latitudine", "breedte", "bredd",
                        "breddegrad", "stop_lat", "y"),
    "longitude_column": ("longitude", "lon", "lng", "long", "längengrad", "laengengrad", "länge", "laenge", "longitud",
                         "longitudine", "lengte", "längd", "længdegrad", "lengdegrad", "stop_lon", "x"),
    "time_column": ("timestamp", "time", "datetime", "date_time", "ts", "date", "when", "started", "started_at",
                    "start_time", "zeitstempel", "zeitpunkt", "zeit", "datum"),
}  # fmt: skip
# A name that ends in a word for a person, a device or a card, and perhaps in one for its number: anonymous_rider_id.
_PERSON = re.compile(
    r"(^|[ _.-])(user|rider|device|person|customer|client|passenger|member|subscriber|account|card|phone|visitor|"
    r"participant|driver|patient|student|subject|pseudonym|buyer|guest|citizen|resident|employee|cyclist|commuter|"
    r"courier|e?mail|imei|imsi|msisdn|pan|"
    r"nutzer|kund(?:en?)?|fahrgast|kart(?:en?)?|kort|gerät|geraet|användare|resenär|bruger|gebruiker|"
    r"utilisateur|usager|carte|appareil|cartão|cartao|cartões|cartoes|"
    r"usu[aá]rio|utilizador|cliente|tarjeta|dispositivo|pasajero|passageiro|"
    r"utent[ei]|passegger[oi]|tesser[ae]|abbonat[oi]|dispositiv[oi]|karta|pasa[zż]er)s?"
    r"[ _.-]*(id|ids|no|nr|num|number|nummer|kennung|hash|key|token|uuid|guid|ref|codice)?$"
)
# A name with a whole word for what a person does many times: trip_id, rideId, or in a title: Trips by stop.
_TRIP = re.compile(
    r"(?:^|[ _.-])(trip|ride|journey|session|order|event|booking|check[ _-]?in|row|record|transaction|"
    r"validation|visit|tap|scan|trajet|fahrt|viaje|viagem|resa|corsa)(?:s|id|_?ids)?(?=$|[ _.,:-])"
)
# Words of both that pages take for users, those of other languages by how they begin, and words for zones.
_USERS = ("rider", "device", "person", "customer", "client", "passenger", "driver", "patient", "student", "member",
          "subscriber", "card", "phone", "visitor", "participant", "trip", "ride", "journey", "tap", "validation",
          "visit", "booking")  # fmt: skip
_TRANSLATED = {"fahrg": "passenger", "resen": "passenger", "pasaj": "passenger", "passag": "passenger",
               "kund": "customer", "cliente": "customer", "kart": "card", "kort": "card", "cart": "card",
               "tarj": "card", "tess": "card", "pasa": "passenger",
               "ger": "device", "appar": "device", "dispo": "device"}  # fmt: skip
_PLAIN = ("user", "nutzer", "usu", "utent", "utilis", "utiliz", "använd", "bruger", "gebruiker")  # words for users
_ZONES = {
    "stop": r"stops?|h[åa]llplats(er)?|haltestellen?|paradas?|parage(m|ns)|arr[êe]ts?|haltes?|fermat[ae]|przystan\w+",
    "station": r"stations?|bahnh[oö]fe?|estaci[oó]n(es)?|esta[cç](ão|ões)|gares?|stazion[ei]",
    "district": r"districts?|bezirke?|stadtteile?|stadsdel(ar)?|distritos?|barrios?|bairros?|quartiers?|freguesias?|"
    r"arrondissements?|communes?|gemeinden?|municipios?|concelhos?",
    "neighbourhood": r"neighbou?rhoods?",
    **{one: f"{one}s?" for one in ("ward", "tract", "borough", "quarter", "suburb", "block", "school")},
}
_DEGREES = re.compile(r"(\w+?)[ _.-](wgs_?84|gps|deg|degrees|dd|4326|epsg_?4326)")  # lat_wgs84
_NUMBER = re.compile(r"(^|[ _.-])(id|no|nr|number|uuid|guid|key)$")


def find_roles(columns: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Returns the column of each role: the given one, or the first whose name is known for it, such as lat_wgs84.

    A user id may also have a name such as hashed_card_number, which is preferred to `id`: that often counts records.

    Raises MissingColumnError: given columns are missing.
    """
    names = list(columns)
    if missing := [(option, name) for option, name in given.items() if name not in names]:
        raise MissingColumnError.of("the first file", missing, names)
    by_lower = {name.lower(): name for name in reversed(names)}
    roles = dict(given)
    for option in ROLES:
        found = [by_lower[name] for name in NAMES[option] if name in by_lower]
        if option == "user_id_column" and [name.lower() for name in found[:1]] in ([], ["id"]):
            found = [name for name in names if name not in roles.values() and _PERSON.search(_words(name))] + found
        if option in AXES and not found:
            found = [name for name in names if (one := _DEGREES.fullmatch(_words(name))) and one[1] in NAMES[option]]
        if option not in roles and found:
            roles[option] = found[0]
    return roles


def ids_among(names: Iterable[str]) -> list[str]:
    """Returns the columns that are named like ids: of records, trips, vehicles, stops, people."""
    return [name for name in names if _NUMBER.search(_words(name)) or _PERSON.search(_words(name))]


def people_among(names: Iterable[str]) -> list[str]:
    """Returns the columns that are named like ids of people, devices or cards."""
    return [name for name in names if _PERSON.search(_words(name))]


def users_word(column: str, title: str = "") -> str:
    """Returns what pages call a user: what the name of the column of user ids says it is, or `user`.

    Of a column that says `user`, it is the title's word for people. Other columns may hold ids of something else.

    >>> [users_word(name) for name in ("riderId", "trip_id", "trip_card", "device_user", "Fahrgast")]
    ['rider', 'trip', 'card', 'user', 'passenger']
    >>> [users_word(name, "Riders at eight") for name in ("user_id", "card_no", "vehicle_id")]
    ['rider', 'card', 'user']
    """
    person, trip = _PERSON.search(_words(column)), _trip(column)
    word = person[2] if person else trip or ""
    translated = (one for start, one in _TRANSLATED.items() if word.startswith(start))
    found = word if word in _USERS else next(translated, "user")
    if found != "user" or not (person and person[2].startswith(_PLAIN)):
        return found
    titled = (one[:-1] for one in re.findall(r"\w+s\b", title.lower()))
    return next((one for one in titled if one in _USERS and not _TRIP.search(one)), found)


def zones_word(*names: str) -> str | None:
    """Returns what pages call a zone, such as `stop`, by the first name of a column or a file that says it.

    >>> zones_word("hpl_nr", "hallplatser.shp"), zones_word("tract"), zones_word("id")
    ('stop', 'tract', None)
    """
    for name in names:
        for word, pattern in _ZONES.items():
            if re.search(rf"(?:^|[ _.-])({pattern})(?=$|[ _.-])", _words(name)):
                return word
    return None


def trips_title(column: str) -> str | None:
    """Returns a title that says what a column of ids of trips, orders or rows identifies; None for one of people."""
    return "Trips by place" if _trip(column) else None


def check_unit(column: str, title: str | None) -> None:
    """Refuses a column of user ids that is named for trips, orders or rows, unless the page's title names these.

    >>> check_unit("rider_id", None), check_unit("tripId", "Rides by stop")
    (None, None)

    Raises RequestError.
    """
    trip = _trip(column)
    if trip and not _TRIP.search((title or "").lower()):
        raise RequestError(
            f"user_id_column: {column} seems to identify {trip}s, so the release would protect single {trip}s, not "
            "people; name the column that identifies people, or, if that is right, say so to readers, such as "
            f"--title '{trips_title(column)}'"
        )


def _trip(column: str) -> str | None:
    """Returns the word for what a person does many times in a column's name; None if it is a person's column."""
    found = None if _PERSON.search(_words(column)) else _TRIP.search(_words(column))
    return found and found[1]


def _words(name: str) -> str:
    """Returns a column's name in lower case, with userId as user_id."""
    return re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])", "_", name).lower()
