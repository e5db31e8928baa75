import torch

from disagmoe.data.batch import IGNORED, next_token_batch


def test_documents_begin_after_an_end_and_are_not_predicted_from_it() -> None:
    rows = torch.tensor([[5, 6, 0, 7, 0, 8, 9], [0, 1, 2, 3, 4, 0, 6]])
    batch = next_token_batch(rows, end_of_document=0)
    assert batch.targets_BS.tolist() == [
        [6, 0, IGNORED, 0, IGNORED, 9],
        [IGNORED, 2, 3, 4, 0, IGNORED],
    ]
    assert batch.documents is not None
    assert batch.documents.lengths == ((3, 2, 1), (1, 5))
    assert batch.rows(1, 2).documents == type(batch.documents)(((1, 5),))
    assert next_token_batch(rows).documents is None
