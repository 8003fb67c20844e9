"""Prompts and candidates, character by character, on rows of the real data; what a form refuses."""

from pathlib import Path

import pytest

from tests.support.task_data import sets
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.task import Example
from zobench.runspec.registries import TASKS

YES_NO, NO_YES = ("Yes", "No"), ("No", "Yes")
TERRIBLE_GREAT = (" terrible", " great")
SUSAN = (
    "Susan wanted to have a birthday party. She called all of her friends. She has five friends. Her mom said that "
    "Susan can invite them all to the party. Her first friend could not go to the party because she was sick. Her "
    "second friend was going out of town. Her third friend was not so sure if her parents would let her. The fourth "
    "friend said maybe. The fifth friend could go to the party for sure. Susan was a little sad. On the day of the "
    "party, all five friends showed up. Each friend had a present for Susan. Susan was happy and sent each friend a "
    "thank you card the next week. "
)
EXPECTED = [
    # task, set (0: training, 1: validation), number from 0, prompt, candidates, answer
    ("sst2", 0, 0, "hide new secretions from the parental units It was", TERRIBLE_GREAT, 0),
    ("sst2", 1, 0, "it 's a charming and often affecting journey . It was", TERRIBLE_GREAT, 1),
    (
        "rte", 0, 0,
        "No Weapons of Mass Destruction Found in Iraq Yet.\nDoes this mean that \"Weapons of Mass Destruction Found in "
        'Iraq." is true? Yes or No?\n',
        YES_NO, 1,
    ),
    (
        "rte", 1, 1,
        "Yet, we now are discovering that antibiotics are losing their effectiveness against illness. Disease-causing "
        "bacteria are mutating faster than we can come up with new antibiotics to fight the new variations.\nDoes this "
        'mean that "Bacteria is winning the war against antibiotics." is true? Yes or No?\n',
        YES_NO, 0,
    ),
    (
        "cb", 1, 0,
        "Suppose Valence the void-brain, Valence the virtuous valet. Why couldn't the figger choose his own portion of "
        'titanic anatomy to shaft? Did he think he was helping? Can we infer that "Valence was helping"? Yes, No, or '
        "Maybe?\n",
        ("Yes", "No", "Maybe"), 1,
    ),
    (
        "cb", 1, 1,
        "Suppose ``Who knows? The point is, do we go with it or not?'' Do we assume there is a shipment? Can we infer "
        'that "there is a shipment"? Yes, No, or Maybe?\n',
        ("Yes", "No", "Maybe"), 2,
    ),
    (
        "boolq", 1, 2644,
        "The Punisher (season 2) -- The season is set for release in 2019. Are they going to make a punisher season "
        "2?\n",
        YES_NO, 0,
    ),
    (
        "boolq", 1, 427,
        "Peroxide -- Aside from hydrogen peroxide, some other major classes of peroxides are these: Is peroxide and "
        "hydrogen peroxide the same thing?\n",
        YES_NO, 1,
    ),
    (
        "wsc", 0, 0,
        "Mark told Pete many lies about himself, which Pete included in his book. He should have been more skeptical."
        '\nIn the previous sentence, does the pronoun "he" refer to Mark? Yes or No?\n',
        NO_YES, 0,
    ),
    (
        "wsc", 1, 1,
        "Mr. Moncrieff visited Chester 's luxurious New York apartment, thinking that it belonged to his son Edward . "
        "The result was that Mr. Moncrieff has decided to cancel Edward 's allowance on the ground that he no longer "
        'requires his financial support.\nIn the previous sentence, does the pronoun "his" refer to Mr. Moncrieff? Yes '
        "or No?\n",
        NO_YES, 1,
    ),
    (
        "wic", 0, 0,
        'Does the word "place" have the same meaning in these two sentences? Yes, No?\nDo you want to come over to my '
        "place later?\nA political system with no place for the less prominent groups.\n",
        NO_YES, 0,
    ),
    (
        "wic", 1, 11,
        'Does the word "assurance" have the same meaning in these two sentences? Yes, No?\nAn assurance of help when '
        "needed.\nHis assurance in his superiority did not make him popular.\n",
        NO_YES, 0,
    ),
    (
        "multirc", 1, 2134,
        SUSAN + "\nQuestion: Did Susan's sick friend recover?\nI found this answer \"Yes,she recovered\". Is that "
        "correct? Yes or No?\n",
        NO_YES, 1,
    ),
    (
        "multirc", 1, 2135,
        SUSAN + "\nQuestion: Did Susan's sick friend recover?\nI found this answer \"No\". Is that correct? Yes or "
        "No?\n",
        NO_YES, 0,
    ),
    (
        "copa", 0, 0, "My body cast a shadow over the grass because",
        (" the sun was rising.", " the grass was cut."), 0,
    ),
    (
        "copa", 1, 3, "I wanted to conserve energy so",
        (" I swept the floor in the unoccupied room.", " I shut off the light in the unoccupied room."), 1,
    ),
    (
        "winogrande", 1, 0, "Sarah was a much better surgeon than Maria so",
        (" Sarah always got the easier cases.", " Maria always got the easier cases."), 1,
    ),
    (
        "winogrande", 0, 160,
        "Dividing the candy was more difficult than dividing the apples because every kid wanted the",
        (" candy .", " apples ."), 0,
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", [task.name for task in TASKS.builtin() if task.names])
def test_prompts_are_the_papers_character_by_character(real_data: Path, name: str) -> None:
    parts = sets(name, real_data)
    rows = [row[1:] for row in EXPECTED if row[0] == name]
    assert len(rows) == 2
    for part, number, prompt, candidates, answer in rows:
        assert parts[part].examples[number] == Example(prompt, candidates, answer)


def test_without_alignment_the_prompt_is_the_sentences_alone(real_data: Path) -> None:
    """As ``SST2TemplateEmpty`` and ``RTETemplateEmpty`` of ZO-Bench's program have it."""
    train, validation = sets("sst2", real_data, aligned=False)
    assert train.examples[98] == Example("rich and sudden wisdom", TERRIBLE_GREAT, 1)
    assert validation.examples[0].prompt == "it 's a charming and often affecting journey ."
    assert sets("rte", real_data, aligned=False)[0].examples[0] == Example(
        'No Weapons of Mass Destruction Found in Iraq Yet.\n"Weapons of Mass Destruction Found in Iraq."\n', YES_NO, 1
    )


def test_masked_forms_are_mezos_and_without_alignment_the_place_of_the_answer_alone_is_filled(real_data: Path) -> None:
    plain = sets("rte", real_data, aligned=False, masked=True)[0].examples[0].prompt
    assert plain == (
        'No Weapons of Mass Destruction Found in Iraq Yet.\n"Weapons of Mass Destruction Found in Iraq."\n<mask>'
    )
    sst2 = sets("sst2", real_data, masked=True)[1].examples[0]
    assert sst2 == Example("it 's a charming and often affecting journey . It was <mask>.", TERRIBLE_GREAT, 1)
    rte = sets("rte", real_data, masked=True)
    assert rte[0].examples[0] == Example(
        "No Weapons of Mass Destruction Found in Iraq Yet? <mask>, weapons of Mass Destruction Found in Iraq.",
        (" Yes", " No"),
        1,
    )
    assert rte[1].examples[11].prompt == (
        "In a bowl, whisk together the eggs and sugar until completely blended and frothy? <mask>, in a bowl, whisk "
        "together the egg, sugar and vanilla until light in color."
    )


def test_a_task_without_a_masked_form_says_which_have_one() -> None:
    with pytest.raises(ValueError, match=r"masked form \(sst2, rte\), but got cb; use a causal model"):
        form_of(TASKS.get("cb"), aligned=True, masked=True)


def prompt_of(name: str, **row: object) -> Example:
    return TASKS.get(name).example(row, TASKS.get(name).form)


def test_edges_of_the_wording() -> None:
    assert prompt_of("boolq", passage="P", question="is it?", answer=True).prompt == "P Is it?\n"
    assert prompt_of("boolq", passage="P", question="", label=0) == Example("P ?\n", ("Yes", "No"), 1)
    assert prompt_of("multirc", paragraph="  P ", question="q", answer="a", label=1).prompt.startswith(
        "P \nQuestion: q\n"
    )
    copa = prompt_of("copa", premise="It rained! ", choice1="I'm wet.", choice2="I am wet.", question="effect", label=1)
    assert copa == Example("It rained! so", (" i'm wet.", " I am wet."), 1)
    quoted = prompt_of("winogrande", sentence='He said "_" twice.', option1="yes", option2="no", answer="2")
    assert quoted == Example('He said "', ('yes" twice.', 'no" twice.'), 1)
    assert prompt_of("sst2", sentence=" {x} \n", label="1").prompt == "{x} It was"
    assert prompt_of("cb", premise="p", hypothesis="h", label=2).answer == 2


def test_reading_comprehension_is_asked_as_in_mezo() -> None:
    answers = {"text": ["high", "It is high"], "answer_start": [6, 0]}
    squad = prompt_of("squad", title="Ben_Nevis", context="It is high.", question=" How is it? ", answers=answers)
    prompt = "Title: Ben_Nevis\nContext: It is high.\nQuestion: How is it?\nAnswer:"
    assert squad == Example(prompt, (" high\n",), 0, golds=("high", "It is high"))
    drop = prompt_of("drop", passage="They won.", question="When?", answers_spans={"spans": ["May", "in May"]})
    assert drop == Example("Passage: They won.\nQuestion: When?\nAnswer:", (" May\n",), 0, golds=("May", "in May"))
    text, query, entities = "Ann met Bo.\n@highlight\nBo left", "@placeholder left with @placeholder. ", ["Ann", "Bo"]
    record = prompt_of("record", passage=text, query=query, entities=entities, answers=["Bo"])
    assert record == Example("Ann met Bo.\n- Bo left\n-", (" Ann left with Ann.", " Bo left with Bo."), 1, (1,))


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("sst2", {"text": "a", "label": "0"}, "must have text in the columns sentence, but got columns text, label"),
        ("sst2", {"sentence": "a"}, "a row must have the column label, but got columns sentence"),
        ("boolq", {"passage": "a", "question": "b"}, "must have the column label or answer, but got columns passage"),
        ("sst2", {"sentence": "a", "label": "2"}, "`label` must be one of 0, 1, '0', '1', but got '2'$"),
        ("sst2", {"sentence": "a", "label": -1}, "but got -1; -1 means no label, as in a test set"),
        ("winogrande", {"sentence": "a", "option1": "b", "option2": "c", "answer": "1"}, "must hold one _ for"),
        ("copa", {"premise": "a", "choice1": "b", "choice2": "c", "question": "why", "label": 0},
         "`question` must be effect or cause, but got 'why'"),
    ],
)  # fmt: skip
def test_rows_that_are_no_example(name: str, row: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        prompt_of(name, **row)
