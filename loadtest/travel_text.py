"""English for the running example: a travel assistant for accessible hotels.

Randomness is passed in; `workload.py` joins the sentences until token counts are right.
"""

from collections.abc import Iterator
from random import Random

CITIES = (
    "Lisbon",
    "Kyoto",
    "Vienna",
    "Seville",
    "Copenhagen",
    "Edinburgh",
    "Montreal",
    "Ljubljana",
    "Valencia",
    "Helsinki",
    "Porto",
    "Ghent",
    "Turin",
    "Bergen",
    "Krakow",
    "Tallinn",
    "Bordeaux",
    "Salzburg",
    "Utrecht",
    "Nagoya",
    "Bilbao",
    "Leipzig",
    "Galway",
    "Verona",
)

_NAME_FIRST = ("Alder", "Harbour", "Linden", "Station", "Garden", "Copper", "Mill", "Saint Clare", "Old Bridge", "Quay")
_NAME_LAST = ("House", "Inn", "Hotel", "Rooms", "Lodge", "Court", "Residence", "Palace")
_STREETS = ("River Walk", "Market Street", "Chapel Lane", "Castle Road", "Park Avenue", "Tram Street", "Museum Square")
_FEATURES = (
    "a roll-in shower",
    "step-free access from the street",
    "a height-adjustable bed",
    "a ceiling hoist",
    "a visual fire alarm",
    "an accessible parking space",
    "a shower chair",
    "grab rails on both sides",
    "a hearing loop at the desk",
    "a wide lift",
    "a kitchen with low worktops",
    "tactile signs",
    "an adapted taxi service",
    "a refrigerator for medicine",
)
_AIDS = ("a power wheelchair", "a manual wheelchair", "a rollator", "a mobility scooter", "crutches", "a guide dog")
_PEOPLE = ("mother", "father", "sister", "brother", "husband", "wife", "daughter", "son", "friend", "colleague")
_SIGHTS = ("the main station", "the old town", "the river ferry", "the tram stop", "the art museum", "the city park")
_MONTHS = ("March", "April", "May", "June", "July", "September", "October", "November")

_HOTEL_FACTS = (
    "The entrance is step-free, with an automatic door {width} cm wide and no threshold.",
    "The lift measures {width} by {depth} cm, its door opens to {door} cm, with braille buttons at {low} cm.",
    "{Rooms} rooms have a roll-in shower with a fold-down seat at {seat} cm and grab rails on both sides.",
    "Beds stand {bed} cm high with {gap} cm of free space on one side and room for a hoist underneath.",
    "The ramp at the side door rises one in {slope} over {metres} metres and has a handrail on both sides.",
    "Breakfast is served from {hour} on the ground floor, and staff bring trays to the table on request.",
    "An adapted room costs {price} euros a night in {month}, breakfast and city tax included.",
    "From the door it is {distance} metres to {sight}, on level pavement with dropped kerbs.",
    "There are {spaces} accessible parking spaces, each {bay} cm wide, {metres} metres from the lift.",
    "Guests with hearing loss get a vibrating alarm pad, and reception has a hearing loop.",
    "Assistance dogs stay free of charge, and there is a fenced garden behind the house.",
    "The desk is staffed day and night and one section of the counter is {low} cm high.",
    "The toilet is {seat} cm high with {gap} cm of transfer space on the left and an emergency cord to the floor.",
    "Guests rated the access {score} out of 10 in {reviews} reviews, and praised the patient staff.",
    "The step-free route to {sight} takes {minutes} minutes, and the low-floor tram runs every {hour} minutes.",
    "A shower chair, a raised toilet seat and bed blocks can be reserved {hour} days ahead at no charge.",
)

_GUIDELINES = (
    "You are the travel assistant of {brand}, a booking service for guests with reduced mobility.",
    "Answer only from the hotel notes that the user message brings, and say so plainly when they hold no answer.",
    "Name the hotel first, then the measurements that matter: door width, lift size, bed height and shower type.",
    "Give every length in centimetres and every price in euros a night.",
    "Never call a room accessible without saying what makes it so.",
    "Ask at most one question back, and only if the answer would change the choice.",
    "Treat health details as private and don't repeat them unless they are needed.",
    "If two hotels fit equally well, prefer the one with the shorter step-free route.",
    "Mention a step, a slope or a heavy door even when nobody asked about it.",
    "Keep the tone warm, calm and practical, and write short sentences.",
)

_GUIDELINE_ENDS = (
    "Offer to reserve {feature} where the hotel has it.",
    "When {feature} is missing, say so at once.",
    "Guests often ask about {feature}, so check for it first.",
    "Suggest a call to the hotel before {month} bookings.",
    "Close with the distance to {sight}.",
    "For guests with {aid}, check the door width twice.",
    "Answer in at most {hour} sentences.",
)

_QUESTIONS = (
    "My {person} uses {aid}. Which of these hotels in {city} has {feature}, and how far is {sight}?",
    "We visit {city} in {month} with {aid}. Where do we get {feature} and a quiet room?",
    "Which hotel in {city} offers {feature} and {feature2} for under {price} euros a night?",
    "I travel to {city} with my {person} on {day} {month}. Who has {feature} and {feature2}?",
    "Which hotel in {city} has {feature} for guests with {aid}?",
    "Does any hotel near {sight} in {city} have {feature}? My {person} comes with {aid}.",
    "For {hour} nights in {month} I need {feature} and {feature2} in {city}. What do you suggest?",
)

_FOLLOW_UPS = (
    "Thank you. Does that hotel also have {feature}, and is the way to {sight} level for {aid}?",
    "Good. What would {hour} nights from {day} {month} cost, and can they prepare {feature}?",
    "And if my {person} needs {feature} too, would you still choose the same hotel for us?",
    "How wide is the door there, and could a guest with {aid} reach {sight} alone?",
    "Is there a second choice with {feature} that is closer to {sight} in {month}?",
    "We may come with {aid} as well. Is {feature} sure on {day} {month}, or only on request?",
)

_OPENERS = ("", "", "Hello. ", "Hi! ", "Good morning. ", "One more thing: ", "Quick question. ", "We need help. ")
_CLOSERS = (
    "",
    "",
    " Thanks!",
    " Thank you.",
    " Please be exact.",
    " Please give distances.",
    " A short answer is fine.",
)


def hotel_notes(rng: Random, city: str) -> Iterator[str]:
    """Endless: a line that introduces a hotel, some of its facts, the next hotel."""
    yield f"Hotel notes for {city}, checked on site by our own inspectors."
    while True:
        name = f"{rng.choice(_NAME_FIRST)} {rng.choice(_NAME_LAST)}"
        address = f"{rng.randint(2, 140)} {rng.choice(_STREETS)}"
        yield f"{name}, {address}, {rng.randint(12, 90)} rooms on {rng.randint(3, 8)} floors."
        for fact in rng.sample(_HOTEL_FACTS, rng.randint(4, 6)):
            yield fill(fact, rng, city)


def hotel_note(rng: Random, city: str) -> str:
    return fill(rng.choice(_HOTEL_FACTS), rng, city)


def guidelines(rng: Random) -> Iterator[str]:
    """The assistant's rules, in a fixed order, then further ones without end."""
    brand = f"{rng.choice(_NAME_FIRST)} Travel"
    for rule in _GUIDELINES:
        yield rule.format(brand=brand)
    while True:
        yield guideline(rng)


def guideline(rng: Random) -> str:
    return fill(rng.choice(_GUIDELINE_ENDS), rng, "")


def question(rng: Random, city: str) -> str:
    return _polite(fill(rng.choice(_QUESTIONS), rng, city), rng)


def follow_up(rng: Random, city: str) -> str:
    return _polite(fill(rng.choice(_FOLLOW_UPS), rng, city), rng)


def _polite(sentence: str, rng: Random) -> str:
    """Openers and closers of one to six tokens spread the lengths, so that an exact one is soon found."""
    return f"{rng.choice(_OPENERS)}{sentence}{rng.choice(_CLOSERS)}"


def fill(template: str, rng: Random, city: str) -> str:
    """All slots are drawn whether or not the template has them: the draw after it doesn't depend on the template."""
    feature, feature2 = rng.sample(_FEATURES, 2)
    return template.format(
        city=city,
        feature=feature,
        feature2=feature2,
        aid=rng.choice(_AIDS),
        person=rng.choice(_PEOPLE),
        sight=rng.choice(_SIGHTS),
        month=rng.choice(_MONTHS),
        day=rng.randint(2, 28),
        width=rng.randint(82, 120),
        depth=rng.randint(130, 180),
        door=rng.randint(80, 100),
        low=rng.randint(74, 105),
        seat=rng.randint(44, 50),
        bed=rng.randint(45, 58),
        gap=rng.randint(80, 130),
        slope=rng.randint(12, 20),
        metres=rng.randint(3, 30),
        hour=rng.randint(3, 9),
        price=rng.randint(64, 190),
        distance=rng.randint(60, 900),
        spaces=rng.randint(2, 8),
        bay=rng.randint(320, 380),
        score=rng.randint(8, 9),
        reviews=rng.randint(40, 900),
        minutes=rng.randint(4, 25),
        Rooms=rng.choice(("Two", "Three", "Four", "Five", "Six")),
    )
